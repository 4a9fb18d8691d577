//! Safe RDMA verbs: typed objects, and posting that is safe at the cost of C.
