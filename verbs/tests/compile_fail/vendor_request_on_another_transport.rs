//! A vendor's request requires a queue pair of the vendor's transport.

use verbs::{QueuePair, Rts, Ud, op::VendorRequest};

fn misuse<R: VendorRequest<Work = verbs::Buf>>(qp: &mut QueuePair<Ud, Rts>, request: R) {
    let mut batch = qp.extended_batch().unwrap();
    let _ = batch.push_vendor(request);
}

fn main() {}
