//! Bindings to libibverbs, regenerated from the installed rdma-core headers.
