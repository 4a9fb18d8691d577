/* What rdmacm-sys binds. A real file, because bindgen evaluates macros against a file only. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <infiniband/ib.h>
