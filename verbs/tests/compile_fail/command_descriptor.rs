//! The descriptor of an open device takes commands that make the kernel write anywhere.

use verbs::Context;

fn main() {
    let open: fn() -> Context = || unimplemented!();
    let _descriptor = open().cmd_fd();
}
