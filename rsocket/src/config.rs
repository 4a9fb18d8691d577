//! System-wide defaults from files in `/etc/rdma/rsocket`.

use std::{fs, path::Path, str::FromStr, sync::OnceLock, time::Duration};

use crate::proto::{decode_size, encode_size, stream::Settings};

/// Folder of the configuration files, each with one number.
const FOLDER: &str = "/etc/rdma/rsocket";

/// System-wide defaults of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// Time to poll for completions before a thread sleeps.
    pub(crate) polling_time: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            polling_time: Duration::from_micros(10),
        }
    }
}

impl Config {
    /// Reads the files of a folder. A missing file, or one without a valid number, leaves the default. Limits
    /// of a device apply later, when the device is known.
    fn read(folder: &Path) -> Self {
        let mut config = Self::default();
        let Settings {
            send_depth,
            recv_depth,
            send_buffer: _,
            recv_buffer: _,
            send_buffer_idle: _,
            recv_buffer_idle: _,
            send_buffer_max: _,
            recv_buffer_max: _,
            inline,
            iomap_size,
            framing: _,
        } = &mut config.settings;
        set(send_depth, folder, "sqsize_default");
        set(recv_depth, folder, "rqsize_default");
        set(inline, folder, "inline_default");
        set(iomap_size, folder, "iomap_size");
        *iomap_size = decode_size(encode_size(*iomap_size));
        if let Some(bytes) = number(folder, "wmem_default") {
            config.settings.set_send_buffer(bytes);
        }
        if let Some(bytes) = number(folder, "mem_default") {
            config.settings.set_recv_buffer(bytes);
        }
        let mut micros = 10_u32;
        set(&mut micros, folder, "polling_time");
        config.polling_time = Duration::from_micros(micros.into());
        config
    }
}

fn set<T: FromStr>(value: &mut T, folder: &Path, file: &str) {
    if let Some(number) = number(folder, file) {
        *value = number;
    }
}

fn number<T: FromStr>(folder: &Path, file: &str) -> Option<T> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the configuration, read once per process on the first call.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config::read(Path::new(FOLDER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_file_sets_a_default() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Config::read(folder.path()), Config::default());
        for (file, text) in [
            ("sqsize_default", "100\n"),
            ("rqsize_default", "200"),
            ("wmem_default", " 8192 \n"),
            ("mem_default", "16384"),
            ("inline_default", "0"),
            ("iomap_size", "300"),
            ("polling_time", "0"),
        ] {
            fs::write(folder.path().join(file), text).unwrap();
        }
        let expected = Config {
            settings: Settings {
                send_depth: 100,
                recv_depth: 200,
                send_buffer: 8192,
                recv_buffer: 16384,
                send_buffer_idle: 8192,
                recv_buffer_idle: 16384,
                send_buffer_max: 8192,
                recv_buffer_max: 16384,
                inline: 0,
                iomap_size: 256,
                ..Settings::default()
            },
            polling_time: Duration::ZERO,
        };
        assert_eq!(Config::read(folder.path()), expected);
    }

    #[test]
    fn config_file_without_a_number_sets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let texts = ["", "many", "-1", "99999999999999999999", "\0"];
        for text in texts {
            for file in [
                "sqsize_default",
                "mem_default",
                "iomap_size",
                "polling_time",
            ] {
                fs::write(folder.path().join(file), text).unwrap();
            }
            assert_eq!(Config::read(folder.path()), Config::default(), "{text:?}");
        }
        fs::write(folder.path().join("rqsize_default"), [0xff, 0xfe]).unwrap();
        assert_eq!(Config::read(folder.path()), Config::default());
    }
}
