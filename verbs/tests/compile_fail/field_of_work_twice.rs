//! A field is named once: two elements of a receive do not have the same memory.

use verbs::Buf;

struct Slot(Buf);
verbs::scatter_fields!(Slot { 0, 0 });

union Either {
    buf: std::mem::ManuallyDrop<Buf>,
}
verbs::gather_fields!(Either { buf });

fn main() {}
