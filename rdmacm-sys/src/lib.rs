//! Bindings to librdmacm, regenerated from the installed rdma-core headers.
