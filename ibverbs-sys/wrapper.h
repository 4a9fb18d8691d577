/* What ibverbs-sys binds. A real file, because bindgen evaluates macros against a file only. */
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <infiniband/tm_types.h>
