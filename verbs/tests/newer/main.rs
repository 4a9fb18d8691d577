//! Tests of features of newer libraries: memory of the provider (rdma-core 64), device memory as a
//! dma-buf (62), and DMA hints (59). In a program of their own, since the fake's other tests need a library
//! without these features.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

#[expect(dead_code, reason = "few of the objects are needed here")]
#[path = "../fake/fixture.rs"]
mod fixture;
mod hints;
mod library;
#[expect(
    dead_code,
    unused_imports,
    reason = "little of the device is needed here"
)]
#[path = "../fake/provider.rs"]
mod provider;
#[expect(dead_code, reason = "one message is enough here")]
#[path = "../fake/pyverbs/traffic.rs"]
mod traffic;
mod unprotected;

use std::{
    fs::File,
    io::{ErrorKind, Read},
    os::fd::OwnedFd,
};

use verbs::{Context, ProtectionDomain, RemoteAccess, mr::Memory};

use library::Registered;
use provider::Fake;

fn device() -> (Fake, Context, ProtectionDomain) {
    let fake = Fake::new();
    let ctx = fake.open();
    let pd = ctx.alloc_pd().unwrap();
    (fake, ctx, pd)
}

fn contents(fd: OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::from(fd).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn provider_memory_is_registered_by_its_own_call() {
    let (fake, ctx, pd) = device();
    let mut memory = pd.alloc_provider_memory(5000).unwrap();
    assert_eq!(memory.len(), 5000);
    assert!(
        memory.iter().all(|&byte| byte == 0),
        "the provider's are not"
    );
    memory[4999] = 7;
    assert_eq!(memory.pd(), &pd);
    let (start, raw) = (memory.as_ptr().addr(), memory.as_raw().addr());
    let buf = pd.register(memory).create_buf().unwrap();
    assert_eq!(buf[4999], 7);
    let registered = Registered {
        call: "ibv_reg_buf_mr",
        buf: raw,
        addr: start,
        len: 5000,
        iova: None,
    };
    assert_eq!(library::last(), Some(registered));
    assert_eq!(library::count(&pd), 1);
    drop(buf);
    assert_eq!(library::count(&pd), 0, "freed after the registration");
    drop((pd, ctx));
    assert_eq!(fake.live(), [""; 0]);
}

#[test]
fn provider_memory_can_have_an_iova() {
    let (_fake, _ctx, pd) = device();
    let mut memory = pd.alloc_provider_memory(8192).unwrap();
    let start = memory.range().addr().get();
    let raw = memory.as_raw().addr();
    // Recognised also as memory of an unknown kind.
    let memory: Box<dyn Memory> = Box::new(memory);
    let registration = pd.register(memory).remote(RemoteAccess::WRITE);
    let region = registration
        .iova(0x7000_0000 + start as u64 % 4096)
        .create();
    let region = region.unwrap();
    region.write(8000, b"there");
    let iova = 0x7000_0000 + start as u64 % 4096;
    assert_eq!(region.token().addr, iova);
    let registered = Registered {
        call: "ibv_reg_mr_ex",
        buf: raw,
        addr: start,
        len: 8192,
        iova: Some(iova),
    };
    assert_eq!(library::last(), Some(registered));
}

#[test]
fn provider_memory_of_another_domain_is_refused() {
    let (_fake, ctx, pd) = device();
    let other = ctx.alloc_pd().unwrap();
    let memory = pd.alloc_provider_memory(64).unwrap();
    let refused = other.register(memory).create_buf().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        refused.error.to_string(),
        "`ibv_reg_buf_mr` failed (64 bytes): the memory was allocated in another protection domain"
    );
    let memory = refused.value;
    let region = pd.alloc_remote(64, RemoteAccess::READ).unwrap();
    let refused = region.rereg().memory(memory).apply().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(library::count(&pd), 1, "it is given back");
    drop(refused);
    assert_eq!(library::count(&pd), 0);
}

#[test]
fn provider_memory_allocation_failure_is_an_error() {
    let (_fake, _ctx, pd) = device();
    for len in [0, usize::MAX] {
        let err = pd.alloc_provider_memory(len).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput);
    }
    let err = pd.alloc_provider_memory(library::TOO_MUCH).unwrap_err();
    let text = err.to_string();
    assert!(
        text.starts_with("`ibv_alloc_buf` failed (1099511627776 bytes): Cannot allocate"),
        "{text}"
    );
    assert_eq!(library::count(&pd), 0);
}

#[test]
fn provider_memory_without_a_dma_buf_is_not_exported() {
    let (_fake, _ctx, pd) = device();
    let ordinary = pd.alloc_provider_memory(64).unwrap();
    // SAFETY: the descriptor is requested, and never used.
    let err = unsafe { ordinary.export_dmabuf() }.unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENODATA));
}

#[test]
fn device_memory_is_exported() {
    let (fake, ctx, _pd) = device();
    fake.describe(|device| device.attr.max_dm_size = 4096);
    let dm = ctx.alloc_dm(64, 0).unwrap();
    assert_eq!(contents(dm.export_dmabuf().unwrap()), b"device memory");
}

#[test]
fn pool_in_provider_memory_has_its_buffers() {
    let (_fake, _ctx, pd) = device();
    let memory = pd.alloc_provider_memory(4096).unwrap();
    let pool = pd.register(memory).create_pool(512).unwrap();
    let bufs: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    assert_eq!(bufs.len(), 8);
    drop(pool);
    assert_eq!(library::count(&pd), 1, "it stays with its buffers");
    drop(bufs);
    assert_eq!(library::count(&pd), 0);
}
