//! Developer commands for the workspace.
fn main() {}
