/* Streams between a process and the children that it makes: the process echoes by rpoll, with nonblocking sockets, and each child
 * has blocking ones. argv[1] is the address. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 3
#define LEN 300000
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

/* Sends bytes of a child's own to the process, and compares the echo. */
static void exchange(const struct sockaddr_in *addr, int seed)
{
	static unsigned char sent[LEN], received[LEN];
	int stream = rsocket(AF_INET, SOCK_STREAM, 0);
	ssize_t done;

	CHECK(stream >= 0);
	CHECK(rconnect(stream, (const struct sockaddr *)addr, sizeof(*addr)) == 0);
	for (size_t i = 0; i < LEN; i++)
		sent[i] = i * 7 + i / 256 + seed;
	for (size_t at = 0; at < LEN; at += done) {
		size_t chunk = LEN - at < 10000 ? LEN - at : 10000;

		CHECK((done = rsend(stream, sent + at, chunk, 0)) > 0);
		CHECK(rrecv(stream, received + at, done, MSG_WAITALL) == done);
	}
	CHECK(memcmp(sent, received, LEN) == 0);
	CHECK(rshutdown(stream, SHUT_WR) == 0);
	CHECK(rrecv(stream, received, 1, 0) == 0);
	CHECK(rclose(stream) == 0);
}

/* Sends back what a stream has received. Returns whether it has not ended. */
static int echo(int stream)
{
	static char buffer[4096];
	ssize_t len = rrecv(stream, buffer, sizeof(buffer), 0);

	if (len < 0) {
		CHECK(errno == EAGAIN);
		return 1;
	}
	for (ssize_t at = 0, done; at < len; at += done) {
		struct pollfd writable = { .fd = stream, .events = POLLOUT };

		CHECK(rpoll(&writable, 1, 60000) == 1);
		done = rsend(stream, buffer + at, len - at, 0);
		CHECK(done > 0 || errno == EAGAIN);
		done = done < 0 ? 0 : done;
	}
	return len > 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	socklen_t len = sizeof(addr);
	struct pollfd fds[CHILDREN + 1];
	int count = 1, ended = 0, status;
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);

	CHECK(argc == 2 && inet_pton(AF_INET, argv[1], &addr.sin_addr) == 1);
	CHECK(listener >= 0);
	CHECK(rbind(listener, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	CHECK(rlisten(listener, CHILDREN) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	for (int seed = 0; seed < CHILDREN; seed++) {
		if (fork() == 0) {
			alarm(60);
			exchange(&addr, seed);
			/* The listener stays the parent's. */
			exit(0);
		}
	}
	alarm(60);
	fds[0] = (struct pollfd){ .fd = listener, .events = POLLIN };
	while (ended < CHILDREN) {
		CHECK(rpoll(fds, count, -1) > 0);
		for (int i = 1; i < count; i++) {
			if (!fds[i].revents || echo(fds[i].fd))
				continue;
			CHECK(rclose(fds[i].fd) == 0);
			fds[i] = (struct pollfd){ .fd = -1 };
			ended++;
		}
		if (fds[0].revents) {
			int stream = raccept(listener, NULL, NULL);

			CHECK(stream >= 0);
			CHECK(rfcntl(stream, F_SETFL, O_NONBLOCK) == 0);
			fds[count++] = (struct pollfd){ .fd = stream, .events = POLLIN };
		}
	}
	for (int i = 0; i < CHILDREN; i++)
		CHECK(wait(&status) > 0 && status == 0);
	CHECK(rclose(listener) == 0);
	return 0;
}
