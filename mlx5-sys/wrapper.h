/* What rdma-mlx5-sys binds. A real file, because bindgen evaluates macros against a file only. */
#include <infiniband/mlx5dv.h>
