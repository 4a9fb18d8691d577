//! A batch copies inline data when it is posted, and not before.

use verbs::{QueuePair, Rts, op};

fn misuse(qp: &mut QueuePair<verbs::Rc, Rts, ()>) -> verbs::Result<()> {
    let mut batch = qp.batch();
    {
        let data = [1, 2, 3];
        batch.push(op::Send::new(()).inline(&data)).unwrap();
    }
    batch.post()?;
    Ok(())
}

fn main() {}
