/* Endpoints with a shared receive queue of librdmacm: a server and a client exchange a message in each direction. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
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

static void exchange(struct rdma_cm_id *id, int is_server)
{
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_qp_init_attr qp = {
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
	struct ibv_recv_wr receive = {.num_sge = 1}, *bad;
	struct ibv_mr *send_mr, *receive_mr;
	struct ibv_wc wc;

	check(!rdma_create_srq(id, NULL, &srq), "rdma_create_srq");
	check(id->srq != NULL && rdma_create_srq(id, NULL, &srq), "the second rdma_create_srq");
	check(!rdma_create_qp(id, NULL, &qp), "rdma_create_qp");
	check(id->qp->srq == id->srq, "the queue pair's srq");
	send_mr = rdma_reg_msgs(id, sent, sizeof sent);
	receive_mr = rdma_reg_msgs(id, received, sizeof received);
	check(send_mr && receive_mr, "rdma_reg_msgs");
	struct ibv_sge sge = {(uintptr_t)received, sizeof received, receive_mr->lkey};
	receive.sg_list = &sge;
	check(!ibv_post_srq_recv(id->srq, &receive, &bad), "ibv_post_srq_recv");
	check(!(is_server ? rdma_accept(id, &param) : rdma_connect(id, &param)), "the connection");
	strcpy(sent, is_server ? "server" : "client");
	check(!rdma_post_send(id, NULL, sent, sizeof sent, send_mr, 0), "rdma_post_send");
	check(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "rdma_get_send_comp");
	check(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "rdma_get_recv_comp");
	check(!strcmp(received, is_server ? "client" : "server"), "the message");
	rdma_disconnect(id);
	check(!rdma_dereg_mr(send_mr) && !rdma_dereg_mr(receive_mr), "rdma_dereg_mr");
	if (is_server) {
		/* The server by the calls of each object, the client by that of the endpoint. */
		rdma_destroy_qp(id);
		rdma_destroy_srq(id);
		check(id->srq == NULL, "rdma_destroy_srq");
	}
	rdma_destroy_ep(id);
}

int main(int count, char **words)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info;
	struct rdma_cm_id *id, *child;
	int is_server = count == 4 && !strcmp(words[1], "server");

	check(count == 4, "usage");
	hints.ai_flags = is_server ? RAI_PASSIVE : 0;
	check(!rdma_getaddrinfo(words[2], words[3], &hints, &info), "rdma_getaddrinfo");
	check(!rdma_create_ep(&id, info, NULL, NULL), "rdma_create_ep");
	rdma_freeaddrinfo(info);
	rdma_freeaddrinfo(NULL);
	if (is_server) {
		check(!rdma_listen(id, 1), "rdma_listen");
		check(!rdma_get_request(id, &child), "rdma_get_request");
		exchange(child, 1);
		rdma_destroy_ep(id);
	} else {
		exchange(id, 0);
	}
	puts("done");
	return 0;
}
