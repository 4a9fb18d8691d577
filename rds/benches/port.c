// Has preloaded RDS sockets listen and dial on another port than the kernel's, so that both can run on one host at
// the same time. It goes before the library in LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>

enum { KERNELS = 18634, OURS = 18635 };

struct rdma_cm_id;
typedef int bind_addr(struct rdma_cm_id *, struct sockaddr *);
typedef int resolve_addr(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);

// A copy of an address with the other port, if it has the kernel's.
static struct sockaddr *moved(struct sockaddr *from, struct sockaddr_in *to) {
    if (!from || from->sa_family != AF_INET) return from;
    memcpy(to, from, sizeof *to);
    if (to->sin_port == htons(KERNELS)) to->sin_port = htons(OURS);
    return (struct sockaddr *)to;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr) {
    struct sockaddr_in copy;
    bind_addr *next = (bind_addr *)dlsym(RTLD_NEXT, __func__);
    return next(id, moved(addr, &copy));
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms) {
    struct sockaddr_in copy;
    resolve_addr *next = (resolve_addr *)dlsym(RTLD_NEXT, __func__);
    return next(id, src, moved(dst, &copy), timeout_ms);
}
