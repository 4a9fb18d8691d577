//! Files that a guest boots from: kernels and their modules, packages, the initramfs, a build of rdma-core.

pub(crate) mod apt;
pub(crate) mod cache;
pub(crate) mod image;
pub(crate) mod initramfs;
pub mod kernel;
pub(crate) mod kernel_name;
pub(crate) mod kernel_packages;
pub(crate) mod modules;
pub(crate) mod package_lists;
pub mod preparation;
pub mod rdma_core;
pub(crate) mod siw;
