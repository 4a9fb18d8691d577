/*
 * An example of all kinds of requests, into which a test seeds faults: two queue pairs of one process exchange a request and
 * its reply, many writes, messages by writes, reads, and a message waited for by an event.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, DEPTH = 16, TIMEOUT_S = 5 };

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;

static void check(int ok, const char *call)
{
	if (!ok) {
		perror(call);
		exit(1);
	}
}

static void fail(const char *reason)
{
	fprintf(stderr, "%s\n", reason);
	exit(1);
}

static char *map(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(page != MAP_FAILED, "mmap");
	return page;
}

static struct ibv_mr *reg(char *page)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, page, PAGE,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);

	check(mr != NULL, "ibv_reg_mr");
	return mr;
}

static void create(struct end *end)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 1, 1, 0}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	end->memory = map();
	end->mr = reg(end->memory);
	end->cq = ibv_create_cq(ctx, 2 * DEPTH, NULL, channel, 0);
	check(end->cq != NULL, "ibv_create_cq");
	init.send_cq = init.recv_cq = end->cq;
	end->qp = ibv_create_qp(pd, &init);
	check(end->qp != NULL, "ibv_create_qp");
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	check(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
}

static void bring_up(struct end *end, struct end *peer)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 1};

	check(!ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	attr.dest_qp_num = peer->qp->qp_num;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 64;
	attr.max_dest_rd_atomic = 16;
	check(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 16;
	check(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
			     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY), "RTS");
}

static void receive(struct end *end, size_t offset, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)end->memory + offset, length, end->mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	check(!ibv_post_recv(end->qp, &wr, &bad), "ibv_post_recv");
}

/* Posts a request from memory of `mr`; reads and writes name the same offset of the peer's memory. */
static void post(struct end *end, struct end *peer, enum ibv_wr_opcode opcode, int flags, struct ibv_mr *mr, size_t offset,
		 uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + offset, length, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags}, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)peer->memory + offset;
	wr.wr.rdma.rkey = peer->mr->rkey;
	errno = ibv_post_send(end->qp, &wr, &bad);
	check(!errno, "ibv_post_send");
}

static void wait_for(struct end *end, int completions)
{
	time_t start = time(NULL);
	struct ibv_wc wc;

	while (completions > 0) {
		int polled = ibv_poll_cq(end->cq, 1, &wc);

		check(polled >= 0, "ibv_poll_cq");
		if (polled && wc.status != IBV_WC_SUCCESS)
			fail(ibv_wc_status_str(wc.status));
		if (time(NULL) > start + TIMEOUT_S)
			fail("no completion came");
		completions -= polled;
	}
}

static void wait_for_event(struct end *end)
{
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;

	if (poll(&readable, 1, 1000 * TIMEOUT_S) != 1)
		fail("no event came");
	check(!ibv_get_cq_event(channel, &cq, &context) && cq == end->cq, "ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
}

/* A request and its reply. */
static void call(struct end *client, struct end *server)
{
	receive(client, 64, 64);
	receive(server, 0, 64);
	post(client, server, IBV_WR_SEND, IBV_SEND_SIGNALED, client->mr, 0, 64);
	wait_for(server, 1);
	post(server, client, IBV_WR_SEND, IBV_SEND_SIGNALED, server->mr, 0, 64);
	wait_for(server, 1);
	wait_for(client, 2);
	memset(client->memory, 1, 64);
}

/* More writes than the queue has slots. */
static void write_many(struct end *client, struct end *server)
{
	for (int i = 1; i <= 3 * DEPTH; i++) {
		int is_signaled = i % 8 == 0;

		post(client, server, IBV_WR_RDMA_WRITE, is_signaled ? IBV_SEND_SIGNALED : 0, client->mr, 128, 8);
		if (is_signaled)
			wait_for(client, 1);
	}
}

/* Messages by writes: a receive tells that all bytes have arrived. */
static void write_messages(struct end *client, struct end *server)
{
	volatile char *message = server->memory + 256;

	for (int i = 1; i <= 8; i++) {
		memset(client->memory + 256, i, 128);
		receive(server, 0, 0);
		post(client, server, IBV_WR_RDMA_WRITE, 0, client->mr, 256, 128);
		post(client, server, IBV_WR_SEND, IBV_SEND_SIGNALED, client->mr, 0, 0);
		wait_for(server, 1);
		for (int at = 0; at < 128; at++)
			if (message[at] != i)
				fail("the message is not complete");
		wait_for(client, 1);
	}
}

/* Reads into memory of its own, and sends the bytes on. */
static void read_and_send_on(struct end *client, struct end *server)
{
	for (int i = 0; i < 8; i++) {
		char *page = map();
		struct ibv_mr *mr = reg(page);

		receive(server, 0, 64);
		post(client, server, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, mr, 512, 64);
		post(client, server, IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_FENCE, mr, 512, 64);
		wait_for(client, 2);
		wait_for(server, 1);
		check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
		munmap(page, PAGE);
	}
}

/* Reads in flight at once. */
static void read_many(struct end *client, struct end *server)
{
	for (int i = 0; i < DEPTH; i++)
		post(client, server, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, client->mr, 1024 + 64 * i, 64);
	wait_for(client, DEPTH);
}

/* Messages before and after the request for an event. */
static void wait_by_events(struct end *client, struct end *server)
{
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		int polled;

		receive(server, 0, 64);
		post(client, server, IBV_WR_SEND, IBV_SEND_SIGNALED, client->mr, 0, 64);
		wait_for(client, 1);
		check(!ibv_req_notify_cq(server->cq, 0), "ibv_req_notify_cq");
		while (!(polled = ibv_poll_cq(server->cq, 1, &wc)))
			wait_for_event(server);
		check(polled == 1, "ibv_poll_cq");
	}
	check(!ibv_req_notify_cq(server->cq, 0), "ibv_req_notify_cq");
	receive(server, 0, 64);
	post(client, server, IBV_WR_SEND, IBV_SEND_SIGNALED, client->mr, 0, 64);
	wait_for_event(server);
	wait_for(server, 1);
	wait_for(client, 1);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct end client, server;

	ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	check(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	create(&client);
	create(&server);
	bring_up(&client, &server);
	bring_up(&server, &client);
	call(&client, &server);
	write_many(&client, &server);
	write_messages(&client, &server);
	read_and_send_on(&client, &server);
	read_many(&client, &server);
	wait_by_events(&client, &server);
	check(!ibv_destroy_qp(client.qp) && !ibv_destroy_qp(server.qp), "ibv_destroy_qp");
	check(!ibv_dereg_mr(client.mr) && !ibv_dereg_mr(server.mr), "ibv_dereg_mr");
	check(!ibv_destroy_cq(client.cq) && !ibv_destroy_cq(server.cq), "ibv_destroy_cq");
	check(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(!ibv_close_device(ctx), "ibv_close_device");
	ibv_free_device_list(list);
	puts("done");
	return 0;
}
