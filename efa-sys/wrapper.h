/* What rdma-efa-sys binds. A real file, because bindgen evaluates macros against a file only. */
#include <infiniband/efadv.h>
