//! `RDS_INFO_*` of an engine.

use std::io;

use verbs::Gid;

use super::{Engine, State};
use crate::{
    ib_connection::Stage,
    info::{DeviceConnectionInfo, Info},
    proto::{
        connection::ConnectionStats,
        node::{NodeStats, Route},
        wire::MAX_MESSAGE,
    },
};

impl Engine {
    /// `RDS_INFO_*`—A snapshot of the sockets, connections and counters of this engine. Those of
    /// the kernel and of other processes are not included.
    ///
    /// ```
    /// # let _fabric = doctest::lasting_host();
    /// let info = rds::Engine::shared()?.info()?;
    /// for connection in &info.connections {
    ///     println!("{} to {}: {:?}", connection.local, connection.peer, connection.flags);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: the engine belongs to the parent process.
    #[doc(alias = "RDS_INFO_FIRST")]
    pub fn info(&self) -> io::Result<Info> {
        Ok(self.inner().lock()?.info())
    }
}

impl Engine {
    /// Returns the statistics of this engine: the counters of [`info`](Self::info), with names. Takes the engine's lock, which
    /// sends and receives take too, for the time of a copy.
    ///
    /// ```
    /// # let _fabric = doctest::lasting_host();
    /// # let peer = rds::Socket::bind("10.9.0.2:4000")?;
    /// let socket = rds::Socket::bind("10.9.0.1:4000")?;
    /// socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap())?;
    /// let stats = socket.engine().stats()?;
    /// println!("{} messages received, {} duplicates", stats.queued, stats.duplicates);
    /// # assert_eq!(stats.queued, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: the engine belongs to the parent process.
    pub fn stats(&self) -> io::Result<NodeStats> {
        Ok(self.inner().lock()?.node.stats())
    }

    /// Returns the statistics of each connection of this engine: reconnects, retransmissions and anomalies. A connection that
    /// was forgotten, being idle, is not in the list; its part in [`stats`](Self::stats) remains.
    ///
    /// # Errors
    /// As for [`stats`](Self::stats).
    pub fn connection_stats(&self) -> io::Result<Vec<(Route, ConnectionStats)>> {
        let state = self.inner().lock()?;
        let node = &state.node;
        let stats = node.connections();
        let stats = stats.filter_map(|id| Some((node.route(id)?, node.connection_stats(id)?)));
        Ok(stats.collect())
    }
}

impl State {
    fn info(&self) -> Info {
        let mut info = self.node.info();
        let routes = self.node.connections();
        for (id, route) in routes.filter_map(|id| Some((id, self.node.route(id)?))) {
            let mut reported = DeviceConnectionInfo {
                local: route.local,
                peer: route.peer,
                local_gid: [0; 16],
                peer_gid: [0; 16],
                max_send_wr: 0,
                max_recv_wr: 0,
                max_send_sge: 0,
                mr_max: 0,
                mr_size: 0,
                tos: route.tos,
                sl: route.tos & 15,
                cache_allocs: 0,
            };
            let stage = self
                .transport
                .ib_connections
                .get(&id)
                .map(|conn| &conn.stage);
            if let Some(Stage::Up(resources, _)) = stage {
                reported.local_gid = Gid::from(route.local).0;
                reported.peer_gid = Gid::from(route.peer).0;
                reported.max_send_wr = resources.device.sends;
                reported.max_recv_wr = resources.device.receives;
                reported.max_send_sge = resources.device.elements;
                // Memory is registered without a pool, so only the device is a limit.
                reported.mr_max = u32::MAX;
                reported.mr_size = MAX_MESSAGE / 4096 + 1;
            }
            info.device_connections.push(reported);
        }
        info
    }
}
