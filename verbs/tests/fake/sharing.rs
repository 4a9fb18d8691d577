//! Device memory, options of connections, and objects of other processes.

use std::{
    io::ErrorKind,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use softnic::Call;
use verbs::{QueuePair, Reset, event::KernelHandle, import::import_device, qp::Ece};

use crate::fixture::{Fixture, error_text};

fn with_dm() -> Fixture {
    let fixture = Fixture::new();
    fixture
        .fake
        .describe(|device| device.attr.max_dm_size = 4096);
    fixture
}

#[test]
fn device_memory_is_written_and_read() {
    let fixture = with_dm();
    let mut dm = fixture.ctx.alloc_dm(64, 3).unwrap();
    assert_eq!(dm.len(), Some(64));
    dm.write(10, b"device memory").unwrap();
    let mut back = [0; 15];
    dm.read(9, &mut back).unwrap();
    assert_eq!(&back, b"\0device memory\0");
    let Fixture { pd, ctx, fake } = fixture;
    drop((pd, ctx));
    dm.write(0, b"still there").unwrap();
    drop(dm);
    assert_eq!(fake.live(), [""; 0]);
}

#[test]
fn device_memory_has_bounds() {
    let fixture = with_dm();
    let mut dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    for (offset, len) in [(60, 5), (65, 0), (usize::MAX, 2)] {
        let err = dm.write(offset, &vec![0; len]).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput);
        let err = dm.read(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::InvalidInput);
    }
    assert!(dm.write(64, &[]).is_ok());
    assert_eq!(
        dm.write(60, &[0; 5]).unwrap_err().to_string(),
        "`ibv_memcpy_to_dm` failed (5 bytes at 60): the memory has 64 bytes"
    );
    fixture.fake.fail(Call::MemcpyFromDm, libc::EINVAL);
    assert!(dm.read(0, &mut [0]).is_err());
    let err = fixture.ctx.alloc_dm(4097, 0).unwrap_err();
    assert_eq!(
        error_text(&err),
        "`ibv_alloc_dm` failed (4097 bytes, alignment 2^0): \
         Cannot allocate memory (os error 12)"
    );
}

#[test]
fn options_of_a_connection_are_set_and_queried() {
    let fixture = Fixture::new();
    let cq = fixture.cq(4);
    let mut qp: QueuePair<verbs::Rc, Reset> = fixture.pd.qp_builder(&cq, &cq).create().unwrap();
    let offered = qp.query_ece().unwrap();
    assert_ne!(offered.options, 0);
    let chosen = Ece {
        options: 3,
        ..offered
    };
    qp.set_ece(chosen).unwrap();
    assert_eq!(qp.query_ece().unwrap(), chosen);
    fixture.fake.fail(Call::QueryEce, libc::EOPNOTSUPP);
    assert!(qp.query_ece().is_err());
    fixture.fake.fail(Call::SetEce, libc::EINVAL);
    let err = qp.set_ece(Ece::default()).unwrap_err();
    assert!(err.to_string().contains("vendor_id: 0"), "{err}");
}

#[test]
fn imported_objects_are_unimported_not_destroyed() {
    let fixture = with_dm();
    let dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    // SAFETY: used to import the device; nothing of this context is destroyed by the import.
    let fd = unsafe { fixture.ctx.cmd_fd() };
    let fd = fd.try_clone_to_owned().unwrap();
    let ctx = import_device(fd).unwrap();
    assert_ne!(ctx, fixture.ctx);
    let pd = ctx.import_pd(fixture.pd.kernel_handle()).unwrap();
    assert_eq!(pd.kernel_handle(), fixture.pd.kernel_handle());
    let mr = pd.import_mr(KernelHandle(77)).unwrap();
    assert_ne!(mr.lkey(), mr.rkey());
    assert_eq!(mr.pd(), &pd);
    let imported = ctx.import_dm(dm.kernel_handle()).unwrap();
    assert_eq!(imported.len(), None);
    assert_eq!(imported.kernel_handle(), dm.kernel_handle());
    let mut bytes = [1; 4];
    imported.read(0, &mut bytes).unwrap();
    drop((ctx, pd, mr, imported));
    let calls = fixture.fake.calls();
    for call in [Call::UnimportPd, Call::UnimportMr, Call::UnimportDm] {
        assert!(calls.contains(&call), "{call}");
    }
    for call in [Call::DeallocPd, Call::DeregMr, Call::FreeDm] {
        assert!(!calls.contains(&call), "{call}");
    }
}

#[test]
fn descriptor_of_failed_import_is_closed_once() {
    let errors = [
        libc::EINVAL,
        libc::ENODEV,
        libc::EOPNOTSUPP,
        libc::EBADF,
        libc::EIO,
    ];
    for errno in errors {
        let fixture = Fixture::new();
        // SAFETY: used to import the device; nothing of this context is destroyed by the import.
        let fd = unsafe { fixture.ctx.cmd_fd() };
        let fd = fd.try_clone_to_owned().unwrap();
        let number = fd.as_raw_fd();
        fixture.fake.fail(Call::ImportContext, errno);
        let err = import_device(fd).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(errno));
        // SAFETY: takes and returns numbers.
        let open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        assert!(open, "another file has the number {number}");
        // SAFETY: the number of the file opened by the fake in place of the first.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

#[test]
fn failed_imports_are_errors() {
    let fixture = Fixture::new();
    for call in [Call::ImportPd, Call::ImportMr, Call::ImportDm] {
        fixture.fake.fail(call, libc::EINVAL);
    }
    let unknown = KernelHandle(9);
    let err = fixture.ctx.import_pd(unknown).unwrap_err();
    assert_eq!(
        error_text(&err),
        "`ibv_import_pd` failed (KernelHandle(9)): Invalid argument (os error 22)"
    );
    assert!(fixture.pd.import_mr(unknown).is_err());
    assert!(fixture.ctx.import_dm(unknown).is_err());
    fixture.fake.fail(Call::ImportDevice, libc::EOPNOTSUPP);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let err = import_device(file.as_fd().try_clone_to_owned().unwrap()).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
}
