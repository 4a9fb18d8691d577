/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sockets over RDMA: the functions of rsocket(7), as librsocket.so has them. */

#ifndef RSOCKET_H
#define RSOCKET_H

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The original's includes these. Nothing here needs them, so they may be missing. */
#if defined(__has_include)
#if __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* All return -1 and set errno on failure, unless noted otherwise. A descriptor of these
   functions is a real one, but only these functions know what to do with it. */

int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rconnect(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rshutdown(int socket, int how);
int rclose(int socket);

/* As accept4(2). librdmacm does not have this one. */
int raccept4(int socket, struct sockaddr *addr, socklen_t *addrlen, int flags);

ssize_t rrecv(int socket, void *buf, size_t len, int flags);
ssize_t rrecvfrom(int socket, void *buf, size_t len, int flags, struct sockaddr *src_addr,
                  socklen_t *addrlen);
ssize_t rrecvmsg(int socket, struct msghdr *msg, int flags);
ssize_t rsend(int socket, const void *buf, size_t len, int flags);
ssize_t rsendto(int socket, const void *buf, size_t len, int flags,
                const struct sockaddr *dest_addr, socklen_t addrlen);
ssize_t rsendmsg(int socket, const struct msghdr *msg, int flags);
ssize_t rread(int socket, void *buf, size_t count);
ssize_t rreadv(int socket, const struct iovec *iov, int iovcnt);
ssize_t rwrite(int socket, const void *buf, size_t count);
ssize_t rwritev(int socket, const struct iovec *iov, int iovcnt);

/* Descriptors of other kinds may be among them. */
int rpoll(struct pollfd *fds, nfds_t nfds, int timeout);
int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
            struct timeval *timeout);

/* As epoll(7). Closed with rclose(). */
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);

int rgetpeername(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rgetsockname(int socket, struct sockaddr *addr, socklen_t *addrlen);

/* Options of this level are int, and are set before connecting or listening. */
#define SOL_RDMA 0x10000
enum {
    RDMA_SQSIZE,    /* depth of the send queue */
    RDMA_RQSIZE,    /* depth of the receive queue */
    RDMA_INLINE,    /* most bytes that a request carries itself */
    RDMA_IOMAPSIZE, /* how many buffers the peer may map for this side */
    RDMA_ROUTE      /* struct ibv_path_data[]; for InfiniBand */
};

int rsetsockopt(int socket, int level, int optname, const void *optval, socklen_t optlen);
int rgetsockopt(int socket, int level, int optname, void *optval, socklen_t *optlen);
int rfcntl(int socket, int cmd, ... /* arg */);

/* riomap() returns the offset by which the peer writes to the memory; for offset -1, that is its
   address. riowrite() returns how many bytes were in a mapping, and (size_t)-1 on failure. */
off_t riomap(int socket, void *buf, size_t len, int prot, int flags, off_t offset);
int riounmap(int socket, void *buf, size_t len);
size_t riowrite(int socket, const void *buf, size_t count, off_t offset, int flags);

#ifdef __cplusplus
}
#endif

#endif /* RSOCKET_H */
