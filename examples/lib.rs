//! What the programs of one example have in common. Each example is a folder; its programs and the
//! commands to run them are in `Cargo.toml` and in the folder's files.

/// The-geek-in-the-corner's first example: a server, a client, and one message each way.
pub mod basic_client_server {
    pub mod endpoint;
}

/// What rdmacm-utils' tools that make connections have in common.
pub mod cm_tool {
    pub mod address;
    pub mod announced;
    pub mod datagrams;
    pub mod failure;
}

/// One thread that runs a protocol over any number of connections; most examples use it.
pub mod event_loop {
    pub mod address;
    pub mod drive;
    mod peer;
    pub mod protocol;
}

/// The-geek-in-the-corner's third example: a file, by RDMA writes with immediate data.
pub mod file_transfer {
    pub mod incoming;
    pub mod message;
    pub mod receiver;
    pub mod sender;
}

pub mod http;

#[doc = include_str!("kv_store/README.md")]
pub mod kv_store {
    pub mod bucket;
    pub mod client;
    pub mod entry;
    pub mod exchange;
    pub mod message;
    #[cfg(test)]
    mod quotations;
    pub mod server;
    pub mod slot;
    pub mod table;
}

/// rdmacm-utils' `rdma_client` and `rdma_server`: the calls that wait, and one message each way.
pub mod rdma_client_server {
    pub mod message;
}

/// rdmacm-utils' `rdma_xclient` and `rdma_xserver`: a message that a shared receive queue may take.
pub mod rdma_xclient_xserver {
    pub mod extended;
    pub mod message;
    pub mod options;
}

/// The-geek-in-the-corner's second example: two sides that write to each other's memory, or read
/// from it.
pub mod read_write {
    pub mod exchange;
    pub mod message;
}

/// rds-tools' `rds-info`: what it prints.
pub mod rds_info {
    pub mod tables;
}

/// rds-tools' `rds-stress`: two sides that send each other requests and answers.
pub mod rds_stress {
    pub mod message;
    pub mod options;
    pub mod soak;
    pub mod stats;
    pub mod task;
}

/// What programs of RDS have in common.
pub mod rds_tool {
    pub mod info_socket;
    pub mod source;
}

/// The example of RDS' zero copy extensions of 2007: a server that reads and writes the memory of
/// its clients.
pub mod rds_zero_copy {
    pub mod message;
}

/// rdmacm-utils' `rping`: pings that the server reads from the client's memory, and writes back.
pub mod rping {
    pub mod advert;
    pub mod client;
    pub mod ping;
    pub mod server;
}

pub mod text;

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
    pub mod queue;
    pub mod rally;
    pub mod setup;
    pub mod store;
    pub mod xrc_exchange;
}

/// librdmacm's `rstream`: how fast a stream is; and what `riostream` has in common with it.
pub mod rstream {
    pub mod connection;
    pub mod options;
    pub mod plan;
    pub mod test_option;
}

/// librdmacm's `rcopy`: files sent to a server.
pub mod rcopy {
    pub mod message;
}

/// rdmacm-utils' `udaddy`: datagrams to a peer that has said where it takes them.
pub mod udaddy {
    pub mod connect;
    pub mod node;
    pub mod options;
}

/// rdmacm-utils' `udpong`: datagrams of rsockets, there and back.
pub mod udpong {
    pub mod client;
    pub mod endpoint;
    pub mod message;
    pub mod options;
    pub mod server;
}

/// The example of the README, which has to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
