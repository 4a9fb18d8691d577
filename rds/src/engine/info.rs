//! `RDS_INFO_*` of an engine.

use std::io;

use verbs::Gid;

use super::{Engine, State};
use crate::{
    ib_connection::Stage,
    info::{DeviceConnectionInfo, Info},
    proto::wire::MAX_MESSAGE,
};

impl Engine {
    /// `RDS_INFO_*`—A snapshot of the sockets, connections and counters of this engine. Those of
    /// the kernel and of other processes are not included.
    ///
    /// ```no_run
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

impl State {
    fn info(&self) -> Info {
        let mut info = self.node.info();
        let routes = self.node.connections();
        for (id, route) in routes.filter_map(|id| Some((id, self.node.route(id)?))) {
            let mut told = DeviceConnectionInfo {
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
            let stage = self.ib_connections.get(&id).map(|conn| &conn.stage);
            if let Some(Stage::Up(resources)) = stage {
                told.local_gid = Gid::from(route.local).0;
                told.peer_gid = Gid::from(route.peer).0;
                told.max_send_wr = resources.device.sends;
                told.max_recv_wr = resources.device.receives;
                told.max_send_sge = resources.device.elements;
                // Memory is registered without a pool, so only the device is a limit.
                told.mr_max = u32::MAX;
                told.mr_size = MAX_MESSAGE / 4096 + 1;
            }
            info.device_connections.push(told);
        }
        info
    }
}
