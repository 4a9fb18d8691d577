//! `RDS_INFO_*` of an engine.

use std::io;

use verbs::Gid;

use super::{Engine, EngineState};
use crate::{
    ib_connection::ConnectStage,
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

impl EngineState {
    fn info(&self) -> Info {
        let mut info = self.node.info();
        let routes = self.node.connections();
        for (id, route) in routes.filter_map(|id| Some((id, self.node.route(id)?))) {
            let conn = self.transport.ib_connections.get(&id);
            let device = conn.and_then(|conn| match &conn.stage {
                ConnectStage::Up(resources, _) => Some(&resources.device),
                _ => None,
            });
            let gid = |ip| device.map_or([0; 16], |_| Gid::from(ip).0);
            info.device_connections.push(DeviceConnectionInfo {
                local: route.local,
                peer: route.peer,
                local_gid: gid(route.local),
                peer_gid: gid(route.peer),
                max_send_wr: device.map_or(0, |device| device.sends),
                max_recv_wr: device.map_or(0, |device| device.receives),
                max_send_sge: device.map_or(0, |device| device.elements),
                // Memory is registered without a pool, so only the device is a limit.
                mr_max: device.map_or(0, |_| u32::MAX),
                mr_size: device.map_or(0, |_| MAX_MESSAGE / 4096 + 1),
                tos: route.tos,
                sl: route.tos & 15,
                cache_allocs: 0,
            });
        }
        info
    }
}
