//! A device does not write memory that others read.

use mlx5::{Request, Target};
use verbs::{RemoteToken, SharedBuf, ah::Addressed};

fn read(work: Addressed<SharedBuf>, from: RemoteToken, target: Target) {
    let _request = Request::read(work, from, target);
}

fn main() {}
