/* Gives a way without a global route one, to this port itself: on Ethernet there is no way without, and
 * librdmacm's rsockets for datagrams do not know that of the way from a queue pair to itself. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>

typedef struct ibv_ah *create_ah(struct ibv_pd *, struct ibv_ah_attr *);

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
    create_ah *real = (create_ah *)dlsym(RTLD_NEXT, "ibv_create_ah");
    union ibv_gid gid;
    for (int index = 0; index < 16 && !attr->is_global; index++) {
        /* An IPv4 address, which is one of RoCE v2 in any case. */
        if (ibv_query_gid(pd->context, attr->port_num, index, &gid) == 0 && gid.raw[10] == 0xff) {
            attr->is_global = 1;
            attr->grh.dgid = gid;
            attr->grh.sgid_index = index;
            attr->grh.hop_limit = 1;
        }
    }
    return real(pd, attr);
}
