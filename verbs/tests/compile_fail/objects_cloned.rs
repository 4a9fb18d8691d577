//! A handle that destroys its object when dropped has one owner, so its type is not `Clone`.

use verbs::{Buf, CompletionQueue, MemoryWindow, SharedReceiveQueue, dm::DeviceMemory, rss::WorkQueue};

fn is_clone<T: Clone>() {}

fn main() {
    is_clone::<Buf>();
    is_clone::<CompletionQueue>();
    is_clone::<DeviceMemory>();
    is_clone::<MemoryWindow>();
    is_clone::<SharedReceiveQueue>();
    is_clone::<WorkQueue<Buf>>();
}
