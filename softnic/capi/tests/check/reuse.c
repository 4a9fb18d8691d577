/* Sends a message to itself, and changes the memory before the completion: at once if an argument is given. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char sent[64], received[64];

static void check(int ok, const char *call)
{
	if (!ok) {
		perror(call);
		exit(1);
	}
}

static void connect_to_itself(struct ibv_context *ctx, struct ibv_qp *qp)
{
	union ibv_gid gid;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	check(!ibv_query_gid(ctx, 1, 0, &gid), "ibv_query_gid");
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 64;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
			     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY), "RTS");
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *from, *to;
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_qp *qp;
	struct ibv_recv_wr recv = {.wr_id = 1, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.wr_id = 2, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad_send;
	struct ibv_sge sge_from, sge_to;
	struct ibv_wc wc;
	int completions = 0;

	(void)argv;
	check(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	from = ibv_reg_mr(pd, sent, sizeof(sent), IBV_ACCESS_LOCAL_WRITE);
	to = ibv_reg_mr(pd, received, sizeof(received), IBV_ACCESS_LOCAL_WRITE);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	connect_to_itself(ctx, qp);

	sge_to = (struct ibv_sge){(uintptr_t)received, sizeof(received), to->lkey};
	recv.sg_list = &sge_to;
	check(!ibv_post_recv(qp, &recv, &bad_recv), "ibv_post_recv");
	sge_from = (struct ibv_sge){(uintptr_t)sent, sizeof(sent), from->lkey};
	send.sg_list = &sge_from;
	check(!ibv_post_send(qp, &send, &bad_send), "ibv_post_send");
	if (argc > 1)
		memset(sent, 7, sizeof(sent));
	while (completions < 2) {
		int polled = ibv_poll_cq(cq, 1, &wc);

		check(polled >= 0, "ibv_poll_cq");
		completions += polled;
	}
	memset(sent, 7, sizeof(sent));
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_dereg_mr(from) && !ibv_dereg_mr(to), "ibv_dereg_mr");
	check(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "ibv_destroy_cq");
	check(!ibv_close_device(ctx), "ibv_close_device");
	ibv_free_device_list(list);
	puts("done");
	return 0;
}
