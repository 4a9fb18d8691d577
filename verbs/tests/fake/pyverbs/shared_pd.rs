//! `test_shared_pd.py`: a protection domain of another process

use softnic::Call;
use verbs::{
    QueuePair, RemoteToken, Reset, Rts, WcStatus,
    event::KernelHandle,
    import::import_device,
    op::{self, SendOps},
};

use crate::fixture::Fixture;

#[test]
fn imported_rc_ex_rdma_write() {
    let fixture = Fixture::new();
    // SAFETY: used to import the device; nothing of this context is destroyed by the import.
    let fd = unsafe { fixture.ctx.cmd_fd() };
    let fd = fd.try_clone_to_owned().unwrap();
    let ctx = import_device(fd).unwrap();
    let pd = ctx.import_pd(fixture.pd.kernel_handle()).unwrap();
    let mr = pd.import_mr(KernelHandle(77)).unwrap();
    let mut cq = ctx.create_cq(8).unwrap();
    let builder = pd.qp_builder(&cq, &cq).send_ops(SendOps::RDMA_WRITE);
    let qp: QueuePair<verbs::Rc, Reset> = builder.create().unwrap();
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(qp);
    // The address is not imported: the memory's owner sends the address.
    let to = RemoteToken {
        addr: 0x1000,
        len: 64,
        rkey: mr.rkey(),
    };
    for round in 0..10_u8 {
        let work = pd.register_buf([round; 64]).unwrap();
        let mut batch = qp.extended_batch().unwrap();
        batch.push(op::Write::new(work, to)).unwrap();
        batch.post().unwrap();
        let posted = &fixture.fake.sends(qp.qp_num())[0];
        assert_eq!(posted.bytes(), [round; 64]);
        assert_eq!(posted.remote, Some((0x1000, mr.rkey())));
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        let wc = cq.poll().unwrap().next().unwrap();
        wc.ok().unwrap();
        assert!(qp.complete(wc).is_ok());
    }
    drop((qp, mr, pd));
    let calls = fixture.fake.calls();
    let unimported = |call: &&Call| **call == Call::UnimportMr || **call == Call::UnimportPd;
    let order: Vec<_> = calls.iter().filter(unimported).collect();
    assert_eq!(order, [&Call::UnimportMr, &Call::UnimportPd]);
}
