//! A buffer that others may be reading cannot be written.

use verbs::SharedBuf;

fn misuse(mut buf: SharedBuf) {
    buf[0] = 1;
}

fn main() {}
