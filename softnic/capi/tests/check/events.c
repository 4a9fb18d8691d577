/* Prints the state of the port at the start and after each asynchronous event, until the GIDs have changed. */
#include <infiniband/verbs.h>
#include <stdio.h>

static void print_port(struct ibv_context *ctx, int event)
{
	struct ibv_port_attr port = {0};
	union ibv_gid gid = {0};

	ibv_query_port(ctx, 1, &port);
	ibv_query_gid(ctx, 1, 0, &gid);
	printf("event %d: MTU %d, state %d, GID %d\n", event, port.active_mtu, port.state, gid.raw[15]);
	fflush(stdout);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_async_event event = {.event_type = IBV_EVENT_CQ_ERR};

	if (!ctx)
		return 1;
	print_port(ctx, -1);
	while (event.event_type != IBV_EVENT_GID_CHANGE && ibv_get_async_event(ctx, &event) == 0) {
		ibv_ack_async_event(&event);
		print_port(ctx, event.event_type);
	}
	ibv_close_device(ctx);
	ibv_free_device_list(list);
	return 0;
}
