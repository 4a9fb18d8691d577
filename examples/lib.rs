//! What the programs of one example have in common. Each example is a folder; its programs and the
//! commands to run them are in `Cargo.toml` and in the folder's files.

/// The-geek-in-the-corner's first example: a server, a client, and one message each way.
pub mod basic_client_server {
    pub mod endpoint;
}

/// rdma-core's `ibv_devinfo`: what a device is, and what it can do.
pub mod devinfo {
    pub mod card;
    pub mod json;
    pub mod names;
    pub mod text;
}

/// rdma-core's `ibv_*_pingpong`: two sides that send messages to and fro, over each transport.
pub mod pingpong {
    pub mod address;
    pub mod connected;
    pub mod exchange;
    pub mod options;
    pub mod rally;
    pub mod setup;
}

/// The example of the README, which has to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
