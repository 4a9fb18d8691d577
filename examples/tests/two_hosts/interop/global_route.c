/* Adds a global route to the local port to address handles without one. Ethernet requires a global route, which
 * librdmacm's datagram rsockets omit for the loopback path of a queue pair. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>

typedef struct ibv_ah *create_ah(struct ibv_pd *, struct ibv_ah_attr *);

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
    create_ah *real = (create_ah *)dlsym(RTLD_NEXT, "ibv_create_ah");
    union ibv_gid gid;
    for (int index = 0; index < 16 && !attr->is_global; index++) {
        /* An IPv4 address, always of RoCE v2. */
        if (ibv_query_gid(pd->context, attr->port_num, index, &gid) == 0 && gid.raw[10] == 0xff) {
            attr->is_global = 1;
            attr->grh.dgid = gid;
            attr->grh.sgid_index = index;
            attr->grh.hop_limit = 1;
        }
    }
    return real(pd, attr);
}
