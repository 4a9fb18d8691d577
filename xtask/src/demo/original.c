/* A server of librdmacm in C, as the-geek-in-the-corner's first example: accepts one connection, exchanges one message in each
 * direction with the client, and ends with the connection. Printed lines are those of the port in examples/basic_client_server. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE = 1024 };

struct link {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *sent, *received;
    char send[MESSAGE], receive[MESSAGE];
};

static void require(int holds, const char *call)
{
    if (!holds) {
        perror(call);
        exit(1);
    }
}

static void build(struct link *link)
{
    struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
    struct ibv_sge sge;
    struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;

    link->pd = ibv_alloc_pd(link->id->verbs);
    require(link->pd != NULL, "ibv_alloc_pd");
    link->cq = ibv_create_cq(link->id->verbs, 2, NULL, NULL, 0);
    require(link->cq != NULL, "ibv_create_cq");
    attr.send_cq = attr.recv_cq = link->cq;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 1;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    require(rdma_create_qp(link->id, link->pd, &attr) == 0, "rdma_create_qp");
    link->sent = ibv_reg_mr(link->pd, link->send, MESSAGE, 0);
    link->received = ibv_reg_mr(link->pd, link->receive, MESSAGE, IBV_ACCESS_LOCAL_WRITE);
    require(link->sent != NULL && link->received != NULL, "ibv_reg_mr");
    sge.addr = (uintptr_t)link->receive;
    sge.length = MESSAGE;
    sge.lkey = link->received->lkey;
    require(ibv_post_recv(link->id->qp, &receive, &bad) == 0, "ibv_post_recv");
}

static void exchange(struct link *link)
{
    struct ibv_sge sge = { (uintptr_t)link->send, MESSAGE, link->sent->lkey };
    struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                                .send_flags = IBV_SEND_SIGNALED }, *bad;
    struct ibv_wc done;

    printf("connected. posting send...\n");
    snprintf(link->send, MESSAGE, "message from a server in C with pid %d", getpid());
    require(ibv_post_send(link->id->qp, &send, &bad) == 0, "ibv_post_send");
    for (int completions = 0; completions < 2;) {
        int polled = ibv_poll_cq(link->cq, 1, &done);
        require(polled >= 0 && (polled == 0 || done.status == IBV_WC_SUCCESS), "ibv_poll_cq");
        completions += polled;
        if (polled && done.opcode == IBV_WC_RECV)
            printf("received message: %.*s\n", MESSAGE, link->receive);
        else if (polled)
            printf("send completed successfully.\n");
    }
}

static void destroy(struct link *link)
{
    rdma_destroy_qp(link->id);
    require(ibv_dereg_mr(link->sent) == 0, "ibv_dereg_mr");
    require(ibv_dereg_mr(link->received) == 0, "ibv_dereg_mr");
    require(ibv_destroy_cq(link->cq) == 0, "ibv_destroy_cq");
    require(ibv_dealloc_pd(link->pd) == 0, "ibv_dealloc_pd");
    require(rdma_destroy_id(link->id) == 0, "rdma_destroy_id");
}

int main(int count, char **words)
{
    static struct link link;
    struct sockaddr_in addr = { .sin_family = AF_INET };
    struct rdma_conn_param param = { .rnr_retry_count = 7 };
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    struct rdma_cm_event *event;

    if (count != 3 || inet_pton(AF_INET, words[1], &addr.sin_addr) != 1) {
        fprintf(stderr, "usage: %s ADDRESS PORT\n", words[0]);
        return 1;
    }
    addr.sin_port = htons(atoi(words[2]));
    setvbuf(stdout, NULL, _IOLBF, 0);
    require(channel != NULL, "rdma_create_event_channel");
    require(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
    require(rdma_bind_addr(listener, (struct sockaddr *)&addr) == 0, "rdma_bind_addr");
    require(rdma_listen(listener, 1) == 0, "rdma_listen");
    printf("listening on port %d.\n", ntohs(rdma_get_src_port(listener)));
    for (int has_ended = 0; !has_ended;) {
        require(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
        enum rdma_cm_event_type type = event->event;
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
            link.id = event->id;
        require(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            printf("received connection request.\n");
            build(&link);
            require(rdma_accept(link.id, &param) == 0, "rdma_accept");
        } else if (type == RDMA_CM_EVENT_ESTABLISHED) {
            exchange(&link);
        } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
            printf("peer disconnected.\n");
            destroy(&link);
            has_ended = 1;
        } else {
            fprintf(stderr, "unexpected event: %s\n", rdma_event_str(type));
            return 1;
        }
    }
    require(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
    return 0;
}
