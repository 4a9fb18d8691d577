/*
 * A device that does nothing: what is posted has completed at once, successfully, in order.
 *
 * Built as a shared object and preloaded, it stands before libibverbs for the calls that make
 * objects. Posting and polling go through the tables of its contexts, as with any provider. So the
 * programs that are compared, in C and in Rust, run the same machine code below `ibv_post_send`,
 * `ibv_post_recv` and `ibv_poll_cq`. It is not thread-safe, and checks only what would break it.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdlib.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

struct entry {
	uint64_t wr_id;
	uint32_t qp_num;
	enum ibv_wc_opcode opcode;
};

/* The entries `head..tail` are to be polled; there is room for a power of two of them. */
struct noop_cq {
	struct ibv_cq cq;
	struct entry *ring;
	uint32_t mask, head, tail;
};

struct noop_qp {
	struct ibv_qp qp;
	struct noop_cq *send_cq, *recv_cq;
};

static inline int complete(struct noop_cq *cq, uint64_t wr_id, uint32_t qp_num,
			   enum ibv_wc_opcode opcode)
{
	if (cq->tail - cq->head > cq->mask)
		return ENOMEM;
	cq->ring[cq->tail++ & cq->mask] = (struct entry){ wr_id, qp_num, opcode };
	return 0;
}

static int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct noop_qp *qp = (struct noop_qp *)ibqp;

	for (; wr; wr = wr->next) {
		if (!(wr->send_flags & IBV_SEND_SIGNALED))
			continue;
		int error = complete(qp->send_cq, wr->wr_id, ibqp->qp_num, IBV_WC_SEND);
		if (error) {
			*bad = wr;
			return error;
		}
	}
	return 0;
}

static int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct noop_qp *qp = (struct noop_qp *)ibqp;

	for (; wr; wr = wr->next) {
		int error = complete(qp->recv_cq, wr->wr_id, ibqp->qp_num, IBV_WC_RECV);
		if (error) {
			*bad = wr;
			return error;
		}
	}
	return 0;
}

static int poll_cq(struct ibv_cq *ibcq, int entries, struct ibv_wc *wc)
{
	struct noop_cq *cq = (struct noop_cq *)ibcq;
	int count = 0;

	for (; count < entries && cq->head != cq->tail; count++, wc++) {
		const struct entry *entry = &cq->ring[cq->head++ & cq->mask];

		wc->wr_id = entry->wr_id;
		wc->status = IBV_WC_SUCCESS;
		wc->opcode = entry->opcode;
		wc->vendor_err = 0;
		wc->byte_len = 0;
		wc->qp_num = entry->qp_num;
		wc->wc_flags = 0;
	}
	return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq, (void)solicited_only;
	return 0;
}

/* The device, and its one context. */

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "noop0",
	.dev_name = "noop0",
};

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (list)
		list[0] = &device;
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *dev)
{
	return dev->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
	struct verbs_context *ctx = calloc(1, sizeof(*ctx));

	if (!ctx)
		return NULL;
	ctx->sz = sizeof(*ctx);
	ctx->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	ctx->context.device = dev;
	ctx->context.cmd_fd = ctx->context.async_fd = -1;
	ctx->context.num_comp_vectors = 1;
	ctx->context.ops.post_send = post_send;
	ctx->context.ops.post_recv = post_recv;
	ctx->context.ops.poll_cq = poll_cq;
	ctx->context.ops.req_notify_cq = req_notify_cq;
	return &ctx->context;
}

int ibv_close_device(struct ibv_context *ctx)
{
	free((char *)ctx - offsetof(struct verbs_context, context));
	return 0;
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	(void)ctx;
	*attr = (struct ibv_device_attr){
		.phys_port_cnt = 1, .max_qp = 1 << 20, .max_qp_wr = 1 << 20, .max_sge = 32,
		.max_cq = 1 << 20, .max_cqe = 1 << 24, .max_mr = 1 << 20, .max_pd = 1 << 20,
		.max_mr_size = UINT64_MAX,
	};
	return 0;
}

/* The other objects. */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (pd)
		pd->context = ctx;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				unsigned int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	(void)iova, (void)access;
	if (mr)
		*mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr,
				       .length = length, .lkey = 0x1234, .rkey = 0x1234 };
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	struct noop_cq *cq = calloc(1, sizeof(*cq));
	uint32_t entries = 1;

	(void)vector;
	while (entries < (uint32_t)cqe)
		entries *= 2;
	cq->cq.context = ctx;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->cq.cqe = entries;
	cq->mask = entries - 1;
	cq->ring = calloc(entries, sizeof(*cq->ring));
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct noop_cq *cq = (struct noop_cq *)ibcq;

	free(cq->ring);
	free(cq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	static uint32_t number = 16;
	struct noop_qp *qp = calloc(1, sizeof(*qp));

	qp->qp.context = pd->context;
	qp->qp.pd = pd;
	qp->qp.qp_context = attr->qp_context;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.qp_num = ++number;
	qp->qp.qp_type = attr->qp_type;
	qp->send_cq = (struct noop_cq *)attr->send_cq;
	qp->recv_cq = (struct noop_cq *)attr->recv_cq;
	return &qp->qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}
