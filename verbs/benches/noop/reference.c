/*
 * The loops in C that those in `main.rs` are measured against: bare ones, which post and poll and
 * do nothing else, and ones that keep the books that make posting safe.
 *
 *     reference DEVICE CASE COUNT CHUNKS
 *
 * does CASE COUNT times, CHUNKS times over, and prints the median time of a chunk, in nanoseconds
 * for one operation: a request posted, and its completion.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* So that each loop is compiled for its way of posting. */
#define ALWAYS __attribute__((always_inline))

enum { DEPTH = 64, BATCH = 16, LENGTH = 64 };

static void fail(const char *what)
{
	fprintf(stderr, "%s failed: %s\n", what, strerror(errno));
	exit(1);
}

/* Registered memory, and who may touch it. */
struct buffer {
	void *addr;
	uint32_t length, lkey;
	enum { PROGRAM, DEVICE } owner;
};

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct buffer buffers[BATCH];

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (!ctx)
		fail("opening the device");
	pd = ibv_alloc_pd(ctx);
	if (!pd)
		fail("ibv_alloc_pd");
}

static struct ibv_srq *srq;
static struct ibv_qp_ex *qp_ex;
static struct ibv_cq_ex *cq_ex;

static void make_objects(const char *name)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC, .pd = pd };
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 2 * DEPTH,
					       .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };

	if (!strcmp(name, "books-cq-ex")) {
		cq_ex = ibv_create_cq_ex(pd->context, &cq_init);
		cq = cq_ex ? ibv_cq_ex_to_cq(cq_ex) : NULL;
	} else {
		cq = ibv_create_cq(pd->context, 2 * DEPTH, NULL, NULL, 0);
	}
	if (!cq)
		fail("ibv_create_cq");
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	if (!strcmp(name, "books-srq-recv"))
		init.srq = srq = ibv_create_srq(pd, &srq_init);
	if (!strcmp(name, "books-extended")) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	}
	qp = ibv_create_qp_ex(pd->context, &init);
	if (!qp)
		fail("ibv_create_qp");
	qp_ex = ibv_qp_to_qp_ex(qp);
	for (int i = 0; i < BATCH; i++) {
		void *addr = calloc(1, LENGTH);
		struct ibv_mr *mr = ibv_reg_mr(pd, addr, LENGTH, IBV_ACCESS_LOCAL_WRITE);

		if (!mr)
			fail("ibv_reg_mr");
		buffers[i] = (struct buffer){ addr, LENGTH, mr->lkey, PROGRAM };
	}
}

/* The bare way. Only the fields in use are written, as fast programs do. */

static inline int bare_send(const struct buffer *buffer, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)buffer->addr, buffer->length, buffer->lkey };
	struct ibv_send_wr wr, *bad;

	wr.wr_id = wr_id;
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED;
	return ibv_post_send(qp, &wr, &bad);
}

static inline int bare_recv(const struct buffer *buffer, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)buffer->addr, buffer->length, buffer->lkey };
	struct ibv_recv_wr wr = { wr_id, NULL, &sge, 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

static inline int poll(struct ibv_wc *wc, int entries)
{
	int count;

	do {
		count = ibv_poll_cq(cq, entries, wc);
	} while (count == 0);
	if (count < 0)
		fail("ibv_poll_cq");
	return count;
}

static inline ALWAYS void bare_single(long count, int (*post)(const struct buffer *, uint64_t))
{
	struct ibv_wc wc;

	for (long i = 0; i < count; i++) {
		if (post(&buffers[0], i))
			fail("posting");
		poll(&wc, 1);
		if (wc.status != IBV_WC_SUCCESS)
			fail("a request");
	}
}

/* The buffers that are with the program, which a request names by its identifier. */
struct stock {
	struct buffer *free[BATCH];
	int left;
};

static inline void fill_stock(struct stock *stock)
{
	for (stock->left = 0; stock->left < BATCH; stock->left++)
		stock->free[stock->left] = &buffers[stock->left];
}

static inline ALWAYS void poll_batch(struct stock *stock)
{
	struct ibv_wc wc[BATCH];

	while (stock->left < BATCH) {
		int polled = poll(wc, BATCH);

		for (int k = 0; k < polled; k++) {
			if (wc[k].status != IBV_WC_SUCCESS)
				fail("a request");
			stock->free[stock->left++] = (struct buffer *)(uintptr_t)wc[k].wr_id;
		}
	}
}

static inline ALWAYS void bare_batch(long count, int (*post)(const struct buffer *, uint64_t))
{
	struct stock stock;

	fill_stock(&stock);
	for (long i = 0; i < count; i += BATCH) {
		while (stock.left > 0) {
			const struct buffer *buffer = stock.free[--stock.left];

			if (post(buffer, (uintptr_t)buffer))
				fail("posting");
		}
		poll_batch(&stock);
	}
}

/* One doorbell for many. */
static void bare_list(long count)
{
	struct ibv_send_wr wr[BATCH], *bad;
	struct ibv_sge sge[BATCH];
	struct stock stock;

	fill_stock(&stock);
	for (long i = 0; i < count; i += BATCH) {
		for (int k = 0; stock.left > 0; k++) {
			const struct buffer *buffer = stock.free[--stock.left];

			sge[k] = (struct ibv_sge){ (uintptr_t)buffer->addr, buffer->length,
						   buffer->lkey };
			wr[k].wr_id = (uintptr_t)buffer;
			wr[k].next = stock.left ? &wr[k + 1] : NULL;
			wr[k].sg_list = &sge[k];
			wr[k].num_sge = 1;
			wr[k].opcode = IBV_WR_SEND;
			wr[k].send_flags = IBV_SEND_SIGNALED;
		}
		if (ibv_post_send(qp, wr, &bad))
			fail("posting");
		poll_batch(&stock);
	}
}

/* With books: which buffer is in flight and whose it is, and room in the completion queue. */

struct cq_books {
	uint32_t size, used;
};

struct books {
	struct buffer **slots; /* `head..tail` are in flight */
	struct cq_books *cq;
	uint64_t id;
	uint32_t mask, limit, head, tail;
};

enum { SEQUENCE_BITS = 24 };

static struct cq_books cq_books = { 2 * DEPTH, 0 };
static struct books send_books, recv_books;

static void open_books(struct books *books, uint64_t id)
{
	*books = (struct books){ calloc(DEPTH, sizeof(*books->slots)), &cq_books, id, DEPTH - 1,
				 DEPTH, 0, 0 };
}

static inline int may_post(const struct books *books, const struct buffer *buffer)
{
	return buffer->owner == PROGRAM && books->tail - books->head < books->limit &&
	       books->cq->used < books->cq->size;
}

static inline uint64_t next_id(const struct books *books)
{
	return books->id << SEQUENCE_BITS | (books->tail & ((1u << SEQUENCE_BITS) - 1));
}

static inline void enter(struct books *books, struct buffer *buffer)
{
	buffer->owner = DEVICE;
	books->slots[books->tail++ & books->mask] = buffer;
	books->cq->used++;
}

static inline int books_send(struct buffer *buffer)
{
	if (!may_post(&send_books, buffer))
		return EAGAIN;
	int error = bare_send(buffer, next_id(&send_books));
	if (!error)
		enter(&send_books, buffer);
	return error;
}

static inline int books_recv(struct buffer *buffer)
{
	if (!may_post(&recv_books, buffer))
		return EAGAIN;
	int error = bare_recv(buffer, next_id(&recv_books));
	if (!error)
		enter(&recv_books, buffer);
	return error;
}

static inline struct buffer *leave(struct books *books)
{
	struct buffer *buffer = books->slots[books->head++ & books->mask];

	buffer->owner = PROGRAM;
	return buffer;
}

/* The buffer that a completion gives back; requests before it are done, too. */
static inline struct buffer *books_complete(const struct ibv_wc *wc)
{
	struct books *books = wc->wr_id >> SEQUENCE_BITS == send_books.id ? &send_books :
									    &recv_books;
	uint32_t ahead = (wc->wr_id - books->head) & ((1u << SEQUENCE_BITS) - 1);

	if (wc->wr_id >> SEQUENCE_BITS != books->id || ahead >= books->tail - books->head)
		return NULL;
	while (ahead--)
		leave(books);
	books->cq->used--;
	return leave(books);
}

static inline ALWAYS void books_single(long count, int (*post)(struct buffer *))
{
	struct buffer *buffer = &buffers[0];
	struct ibv_wc wc;

	for (long i = 0; i < count; i++) {
		if (post(buffer))
			fail("posting");
		poll(&wc, 1);
		buffer = books_complete(&wc);
		if (!buffer || wc.status != IBV_WC_SUCCESS)
			fail("a request");
	}
}

static inline ALWAYS void books_batch(long count, int (*post)(struct buffer *))
{
	struct buffer *free[BATCH];
	struct ibv_wc wc[BATCH];
	int left = BATCH;

	for (int k = 0; k < BATCH; k++)
		free[k] = &buffers[k];
	for (long i = 0; i < count; i += BATCH) {
		while (left > 0)
			if (post(free[--left]))
				fail("posting");
		while (left < BATCH) {
			int polled = poll(wc, BATCH);

			for (int k = 0; k < polled; k++) {
				free[left] = books_complete(&wc[k]);
				if (!free[left++] || wc[k].status != IBV_WC_SUCCESS)
					fail("a request");
			}
		}
	}
}

static void books_list(long count)
{
	struct ibv_send_wr wr[BATCH], *bad;
	struct buffer *free[BATCH];
	struct ibv_sge sge[BATCH];
	struct ibv_wc wc[BATCH];
	int left = BATCH;

	for (int k = 0; k < BATCH; k++)
		free[k] = &buffers[k];
	for (long i = 0; i < count; i += BATCH) {
		for (int k = 0; left > 0; k++) {
			struct buffer *buffer = free[--left];

			if (!may_post(&send_books, buffer))
				fail("keeping the books");
			sge[k] = (struct ibv_sge){ (uintptr_t)buffer->addr, buffer->length,
						   buffer->lkey };
			wr[k].wr_id = next_id(&send_books);
			wr[k].next = left ? &wr[k + 1] : NULL;
			wr[k].sg_list = &sge[k];
			wr[k].num_sge = 1;
			wr[k].opcode = IBV_WR_SEND;
			wr[k].send_flags = IBV_SEND_SIGNALED;
			enter(&send_books, buffer);
		}
		if (ibv_post_send(qp, wr, &bad))
			fail("posting");
		while (left < BATCH) {
			int polled = poll(wc, BATCH);

			for (int k = 0; k < polled; k++) {
				free[left] = books_complete(&wc[k]);
				if (!free[left++] || wc[k].status != IBV_WC_SUCCESS)
					fail("a request");
			}
		}
	}
}

/* Kinds of work other than a send and a receive on the classic calls, with the same books. */

static inline int books_write_imm(struct buffer *buffer)
{
	if (!may_post(&send_books, buffer))
		return EAGAIN;

	struct ibv_sge sge = { (uintptr_t)buffer->addr, buffer->length, buffer->lkey };
	struct ibv_send_wr wr, *bad;

	wr.wr_id = next_id(&send_books);
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.imm_data = 1;
	wr.wr.rdma.remote_addr = 4096;
	wr.wr.rdma.rkey = 7;
	int error = ibv_post_send(qp, &wr, &bad);
	if (!error)
		enter(&send_books, buffer);
	return error;
}

/* A buffer from a free list for each message. */
static void books_pool(long count)
{
	struct stock stock;
	struct ibv_wc wc;

	fill_stock(&stock);
	for (long i = 0; i < count; i++) {
		if (!stock.left || books_send(stock.free[--stock.left]))
			fail("posting");
		poll(&wc, 1);
		stock.free[stock.left] = books_complete(&wc);
		if (!stock.free[stock.left++] || wc.status != IBV_WC_SUCCESS)
			fail("a request");
	}
}

static inline int books_srq_recv(struct buffer *buffer)
{
	if (!may_post(&recv_books, buffer))
		return EAGAIN;

	struct ibv_sge sge = { (uintptr_t)buffer->addr, buffer->length, buffer->lkey };
	struct ibv_recv_wr wr = { next_id(&recv_books), NULL, &sge, 1 }, *bad;
	int error = ibv_post_srq_recv(srq, &wr, &bad);
	if (!error)
		enter(&recv_books, buffer);
	return error;
}

static void books_extended(long count)
{
	struct buffer *free[BATCH];
	struct ibv_wc wc;
	int left = BATCH;

	for (int k = 0; k < BATCH; k++)
		free[k] = &buffers[k];
	for (long i = 0; i < count; i += BATCH) {
		ibv_wr_start(qp_ex);
		while (left > 0) {
			struct buffer *buffer = free[--left];

			if (!may_post(&send_books, buffer))
				fail("keeping the books");
			qp_ex->wr_id = next_id(&send_books);
			qp_ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send(qp_ex);
			ibv_wr_set_sge(qp_ex, buffer->lkey, (uintptr_t)buffer->addr, buffer->length);
			enter(&send_books, buffer);
		}
		if (ibv_wr_complete(qp_ex))
			fail("posting");
		while (left < BATCH) {
			poll(&wc, 1);
			free[left] = books_complete(&wc);
			if (!free[left++] || wc.status != IBV_WC_SUCCESS)
				fail("a request");
		}
	}
}

/* Reads the fields that a program needs to take a request back. */
static void books_cq_ex(long count)
{
	struct ibv_poll_cq_attr attr = {};
	struct buffer *free[BATCH];
	struct ibv_wc wc;
	int left = BATCH;

	for (int k = 0; k < BATCH; k++)
		free[k] = &buffers[k];
	for (long i = 0; i < count; i += BATCH) {
		while (left > 0)
			if (books_send(free[--left]))
				fail("posting");
		while (left < BATCH) {
			if (ibv_start_poll(cq_ex, &attr))
				continue;
			do {
				wc.wr_id = cq_ex->wr_id;
				wc.status = cq_ex->status;
				wc.opcode = ibv_wc_read_opcode(cq_ex);
				wc.byte_len = ibv_wc_read_byte_len(cq_ex);
				wc.wc_flags = ibv_wc_read_wc_flags(cq_ex);
				free[left] = books_complete(&wc);
				if (!free[left++] || wc.status != IBV_WC_SUCCESS)
					fail("a request");
			} while (!ibv_next_poll(cq_ex));
			ibv_end_poll(cq_ex);
		}
	}
}

/* Many queue pairs on one completion queue: a request's identifier has the index of its queue pair. */

enum { MANY_DEPTH = 16 };

struct pair {
	struct ibv_qp *qp;
	struct books books;
	struct buffer buffer;
};

static struct pair *pairs;
static long pair_count, next_pair;

static void make_pairs(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };

	cq = ibv_create_cq(pd->context, pair_count * 2 * MANY_DEPTH, NULL, NULL, 0);
	if (!cq)
		fail("ibv_create_cq");
	cq_books.size = pair_count * 2 * MANY_DEPTH;
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = MANY_DEPTH;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	pairs = calloc(pair_count, sizeof(*pairs));
	for (long i = 0; i < pair_count; i++) {
		void *addr = calloc(1, LENGTH);
		struct ibv_mr *mr = ibv_reg_mr(pd, addr, LENGTH, IBV_ACCESS_LOCAL_WRITE);

		pairs[i].qp = ibv_create_qp(pd, &init);
		if (!mr || !pairs[i].qp)
			fail("creating a queue pair");
		open_books(&pairs[i].books, i);
		pairs[i].books.mask = MANY_DEPTH - 1;
		pairs[i].books.limit = MANY_DEPTH;
		pairs[i].buffer = (struct buffer){ addr, LENGTH, mr->lkey, PROGRAM };
	}
}

static void books_pairs(long count)
{
	struct ibv_wc wc;

	for (long i = 0; i < count; i++) {
		struct pair *pair = &pairs[next_pair];

		next_pair = (next_pair + 1) % pair_count;
		if (!may_post(&pair->books, &pair->buffer))
			fail("keeping the books");
		qp = pair->qp;
		if (bare_send(&pair->buffer, next_id(&pair->books)))
			fail("posting");
		enter(&pair->books, &pair->buffer);
		poll(&wc, 1);

		struct books *books = &pairs[wc.wr_id >> SEQUENCE_BITS].books;
		uint32_t ahead = (wc.wr_id - books->head) & ((1u << SEQUENCE_BITS) - 1);

		if (ahead >= books->tail - books->head || wc.status != IBV_WC_SUCCESS)
			fail("a request");
		books->cq->used--;
		leave(books);
	}
}

/* Registration of 1 GiB, touched before. */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static double registration(void)
{
	size_t length = 1ul << 30;
	void *memory = malloc(length);
	double begin, end;
	struct ibv_mr *mr;

	memset(memory, 1, length);
	begin = now();
	mr = ibv_reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE);
	end = now();
	if (!mr || ibv_dereg_mr(mr))
		fail("registration");
	free(memory);
	return end - begin;
}

static double chunk(const char *name, long count)
{
	double begin = now();

	if (!strcmp(name, "bare-send"))
		bare_single(count, bare_send);
	else if (!strcmp(name, "bare-send-batch"))
		bare_batch(count, bare_send);
	else if (!strcmp(name, "bare-send-list"))
		bare_list(count);
	else if (!strcmp(name, "bare-recv"))
		bare_single(count, bare_recv);
	else if (!strcmp(name, "books-send"))
		books_single(count, books_send);
	else if (!strcmp(name, "books-send-batch"))
		books_batch(count, books_send);
	else if (!strcmp(name, "books-send-list"))
		books_list(count);
	else if (!strcmp(name, "books-recv"))
		books_single(count, books_recv);
	else if (!strcmp(name, "books-write-imm"))
		books_single(count, books_write_imm);
	else if (!strcmp(name, "books-pool"))
		books_pool(count);
	else if (!strcmp(name, "books-srq-recv"))
		books_single(count, books_srq_recv);
	else if (!strcmp(name, "books-extended"))
		books_extended(count);
	else if (!strcmp(name, "books-cq-ex"))
		books_cq_ex(count);
	else if (strstr(name, "-pairs"))
		books_pairs(count);
	else
		fail(name);
	return (now() - begin) / count;
}

static int compare(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		fail("usage: reference DEVICE CASE COUNT CHUNKS; starting");
	long count = atol(argv[3]), chunks = atol(argv[4]);
	double *times = calloc(chunks, sizeof(*times));

	open_device(argv[1]);
	if (!strcmp(argv[2], "memory")) {
		/* What the books of both queues take, for a depth of COUNT. */
		printf("%zu\n", 2 * (sizeof(struct books) + count * (sizeof(struct buffer *) +
								     sizeof(struct buffer))));
		return 0;
	}
	if (!strcmp(argv[2], "registration")) {
		for (long i = 0; i < chunks; i++)
			times[i] = registration();
	} else {
		pair_count = strstr(argv[2], "-pairs") ? atol(argv[2]) : 0;
		if (pair_count)
			make_pairs();
		else
			make_objects(argv[2]);
		open_books(&send_books, 2);
		open_books(&recv_books, 3);
		for (long i = 0; i < chunks; i++)
			times[i] = chunk(argv[2], count);
	}
	qsort(times, chunks, sizeof(*times), compare);
	printf("%.3f\n", times[chunks / 2]);
	return 0;
}
