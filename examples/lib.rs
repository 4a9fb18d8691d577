//! Code shared by the programs of one example. Each example is a folder; the programs and the commands are
//! listed in `Cargo.toml` and in the folder's files.

pub mod address;

/// The-geek-in-the-corner's first example: a server, a client, and one message in each direction.
pub mod basic_client_server {
    pub mod client;
    pub mod endpoint;
    #[cfg(test)]
    mod quotations;
    pub mod server;
}

/// Code shared by rdmacm-utils' tools for connections.
pub mod cm_tool {
    pub mod address;
    pub mod datagrams;
    pub mod failure;
    pub mod messages;
}

/// A table of the counters of RDMA ports.
pub mod counters {
    mod table;

    pub use table::{Row, rows, table};
}

/// The-geek-in-the-corner's third example: a file, by RDMA writes with immediate data.
pub mod file_transfer {
    pub mod incoming;
    pub mod message;
    pub mod receiver;
    pub mod sender;
}

pub mod http;

#[cfg(test)]
mod quotations;

/// rdmacm-utils' `rdma_client` and `rdma_server`: blocking calls, and one message in each direction.
pub mod rdma_client_server {
    pub mod message;
}

/// rdmacm-utils' `rdma_xclient` and `rdma_xserver`: one message, optionally to a shared receive queue.
pub mod rdma_xclient_xserver {
    pub mod extended;
    pub mod message;
    pub mod options;
}

/// The-geek-in-the-corner's second example: two sides write to or read from each other's memory.
pub mod read_write {
    pub mod exchange;
    pub mod message;
}

/// rds-tools' `rds-info`: the tables printed.
pub mod rds_info {
    pub mod tables;
}

/// rds-tools' `rds-stress`: two sides exchange requests and answers.
pub mod rds_stress {
    pub mod message;
    pub mod options;
    pub mod soak;
    pub mod stats;
    pub mod task;
}

/// Code shared by RDS programs.
pub mod rds_tool {
    pub mod info_socket;
    pub mod source;
}

/// The example of RDS' zero copy extensions of 2007: a server reads and writes the clients' memory.
pub mod rds_zero_copy {
    pub mod message;
}

/// rdmacm-utils' `rping`: the server reads pings from the client's memory and writes the answers back.
pub mod rping {
    pub mod advert;
    pub mod client;
    pub mod ping;
    pub mod server;
}

pub mod text;

pub mod trace;

/// rdma-core's `ibv_devinfo`: devices and the attributes of each.
pub mod devinfo {
    pub mod card;
    pub mod json;
    pub mod names;
    pub mod text;
}

/// rdma-core's `ibv_*_pingpong`: two sides exchange messages over each transport.
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

/// librdmacm's `rstream`: speed of a stream; with code shared by `riostream`.
pub mod rstream {
    pub mod connection;
    pub mod options;
    pub mod plan;
    pub mod test_option;
}

/// librdmacm's `rcopy`: files copied to a server.
pub mod rcopy {
    pub mod message;
}

/// rdmacm-utils' `udaddy`: datagrams to a peer, addressed by the peer's answer.
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

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
