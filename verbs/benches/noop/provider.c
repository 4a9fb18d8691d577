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
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	struct entry *ring;
	uint32_t mask, head, tail;
};

struct noop_qp {
	struct ibv_qp_ex qp;
	struct noop_cq *send_cq, *recv_cq;
	/* The request being built. */
	uint64_t wr_id;
	unsigned int flags;
	int error;
};

struct noop_srq {
	struct ibv_srq srq;
	/* The last queue pair on the queue, where all receives complete. */
	struct noop_qp *qp;
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

static int post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct noop_qp *qp = ((struct noop_srq *)ibsrq)->qp;

	return post_recv(&qp->qp.qp_base, wr, bad);
}

/* The extended way of posting. A request is complete when the next one begins, or the batch ends. */

static inline void finish(struct noop_qp *qp)
{
	if (qp->flags & IBV_SEND_SIGNALED)
		qp->error |= complete(qp->send_cq, qp->wr_id, qp->qp.qp_base.qp_num, IBV_WC_SEND);
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct noop_qp *qp = (struct noop_qp *)ex;

	qp->flags = 0;
	qp->error = 0;
}

static void wr_send(struct ibv_qp_ex *ex)
{
	struct noop_qp *qp = (struct noop_qp *)ex;

	finish(qp);
	qp->wr_id = ex->wr_id;
	qp->flags = ex->wr_flags;
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	(void)rkey, (void)addr, (void)imm;
	wr_send(ex);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	(void)ex, (void)lkey, (void)addr, (void)length;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *list)
{
	(void)ex, (void)count, (void)list;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	(void)ex, (void)addr, (void)length;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	finish((struct noop_qp *)ex);
	return ((struct noop_qp *)ex)->error;
}

/* The extended way of polling. */

static int next_poll(struct ibv_cq_ex *ex)
{
	struct noop_cq *cq = (struct noop_cq *)ex;

	if (cq->head == cq->tail)
		return ENOENT;
	ex->wr_id = cq->ring[cq->head++ & cq->mask].wr_id;
	ex->status = IBV_WC_SUCCESS;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	(void)attr;
	return next_poll(ex);
}

static void end_poll(struct ibv_cq_ex *ex)
{
	(void)ex;
}

static inline const struct entry *current(struct ibv_cq_ex *ex)
{
	const struct noop_cq *cq = (const struct noop_cq *)ex;

	return &cq->ring[(cq->head - 1) & cq->mask];
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return current(ex)->opcode;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return current(ex)->qp_num;
}

static uint32_t read_zero(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

static uint8_t read_zero_byte(struct ibv_cq_ex *ex)
{
	(void)ex;
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

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);
static struct ibv_qp *create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);

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
	ctx->context.ops.post_srq_recv = post_srq_recv;
	ctx->context.ops.req_notify_cq = req_notify_cq;
	ctx->create_cq_ex = create_cq_ex;
	ctx->create_qp_ex = create_qp_ex;
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
		.max_srq = 1 << 16, .max_srq_wr = 1 << 15, .max_srq_sge = 32,
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

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)ibv_create_cq(
		ctx, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);

	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_qp_num = read_qp_num;
	ex->read_vendor_err = ex->read_byte_len = ex->read_src_qp = ex->read_slid = read_zero;
	ex->read_imm_data = read_zero;
	ex->read_wc_flags = read_zero;
	ex->read_sl = ex->read_dlid_path_bits = read_zero_byte;
	return ex;
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
	struct noop_qp *noop = calloc(1, sizeof(*noop));
	struct ibv_qp *qp = &noop->qp.qp_base;

	qp->context = pd->context;
	qp->pd = pd;
	qp->qp_context = attr->qp_context;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->srq = attr->srq;
	qp->qp_num = ++number;
	qp->qp_type = attr->qp_type;
	noop->send_cq = (struct noop_cq *)attr->send_cq;
	noop->recv_cq = (struct noop_cq *)attr->recv_cq;
	if (attr->srq)
		((struct noop_srq *)attr->srq)->qp = noop;
	return qp;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp = ibv_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr);
	struct ibv_qp_ex *ex = (struct ibv_qp_ex *)qp;

	(void)ctx;
	ex->wr_start = wr_start;
	ex->wr_send = wr_send;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_complete = wr_complete;
	return qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return (struct ibv_qp_ex *)qp;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct noop_srq *srq = calloc(1, sizeof(*srq));

	(void)attr;
	srq->srq.context = pd->context;
	srq->srq.pd = pd;
	return &srq->srq;
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	(void)srq;
	*attr = (struct ibv_srq_attr){ .max_wr = 64, .max_sge = 1 };
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(srq);
	return 0;
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
