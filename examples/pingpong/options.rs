//! Command lines with the options of `ibv_*_pingpong` of rdma-core 44, by the same letters and names. Newer options, such as
//! `-U` for confidential guests, are absent; the exchange with newer programs is the same.

#![expect(clippy::print_stderr, reason = "of programs for the terminal")]

use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;
use verbs::attr::Mtu;

/// Options of all programs except `xsrq_pingpong`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connect to the server on this host; without a host, run the server
    pub host: Option<String>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value_t = 18515, value_parser = number::<u16>)]
    pub port: u16,
    /// Use this device, instead of the first one
    #[arg(short = 'd', long, value_name = "DEV")]
    pub ib_dev: Option<String>,
    /// Use this port of the device
    #[arg(short, long, value_name = "PORT", default_value_t = 1, value_parser = positive::<u8>)]
    pub ib_port: u8,
    /// Number of receives to post at a time
    #[arg(short, long, value_name = "DEPTH", default_value_t = 500, value_parser = positive::<u32>)]
    pub rx_depth: u32,
    /// Number of exchanges, over all queue pairs
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = number::<u32>)]
    pub iters: u32,
    /// The service level
    #[arg(short = 'l', long, default_value_t = 0, value_parser = service_level)]
    pub sl: u8,
    /// Sleep until a completion, instead of polling
    #[arg(short, long)]
    pub events: bool,
    /// Index of this side's address in the port's GID table; required on RoCE
    #[arg(short, long, value_name = "INDEX", value_parser = number::<u8>)]
    pub gid_idx: Option<u8>,
    /// Check the received data
    #[arg(short, long)]
    pub chk: bool,
}

/// Further options of programs with a connection.
#[derive(Args, Clone, Copy, Debug)]
pub struct Messages {
    /// The size of a message, in bytes
    #[arg(short, long, default_value_t = 4096, value_parser = number::<u32>)]
    pub size: u32,
    /// The path MTU, in bytes
    #[arg(short, long, value_name = "SIZE", default_value = "1024", value_parser = mtu)]
    pub mtu: Mtu,
}

/// Further options of `ibv_rc_pingpong`, where the device supports them.
#[derive(Args, Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct Extensions {
    /// Page memory in on demand
    #[arg(short, long)]
    pub odp: bool,
    /// Register all memory, and page it in on demand
    #[arg(short = 'O', long)]
    pub iodp: bool,
    /// Page memory in ahead of use, with -o
    #[arg(short = 'P', long)]
    pub prefetch: bool,
    /// Read the completions' timestamps
    #[arg(short, long)]
    pub ts: bool,
    /// Use the device's own memory
    #[arg(short = 'j', long)]
    pub dm: bool,
    /// Post with `ibv_wr_*`
    #[arg(short = 'N', long = "new_send")]
    pub new_send: bool,
}

impl Extensions {
    /// Whether either kind of on-demand paging is selected.
    pub fn on_demand(self) -> bool {
        self.odp || self.iodp
    }

    /// Checks the combination of options.
    ///
    /// # Errors
    /// The combination is not supported.
    pub fn check(self) -> anyhow::Result<()> {
        ensure!(
            !(self.on_demand() && self.dm),
            "DM memory region can't be on demand"
        );
        ensure!(
            self.on_demand() || !self.prefetch,
            "prefetch is valid only with on-demand memory region"
        );
        Ok(())
    }
}

/// Converts the result of a run to an exit code.
pub fn finish(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("{err:#}");
            ExitCode::FAILURE
        }
    }
}

/// Parses a number as in C: base 16 after `0x`, base 8 after `0`, otherwise base 10.
///
/// # Errors
/// The text is not a number, or the number is too large.
pub fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let octal = text.strip_prefix('0').filter(|rest| !rest.is_empty());
    let (digits, radix) = match (hex, octal) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (text, 10),
    };
    if digits.starts_with('+') {
        return Err("it is not a number".to_owned());
    }
    let number = u64::from_str_radix(digits, radix).map_err(|err| err.to_string())?;
    T::try_from(number).map_err(|_| "it is too large".to_owned())
}

/// Parses a number above zero.
///
/// # Errors
/// The number is zero, invalid or too large.
pub fn positive<T: TryFrom<u64> + Default + PartialEq>(text: &str) -> Result<T, String> {
    match number(text)? {
        zero if zero == T::default() => Err("it must be at least 1".to_owned()),
        number => Ok(number),
    }
}

/// Parses a service level.
///
/// # Errors
/// The text is not a service level.
pub fn service_level(text: &str) -> Result<u8, String> {
    match number(text)? {
        level @ 0..16 => Ok(level),
        _ => Err("a service level is at most 15".to_owned()),
    }
}

/// Parses an MTU in bytes.
///
/// # Errors
/// The size is not a valid MTU.
pub fn mtu(text: &str) -> Result<Mtu, String> {
    Mtu::from_bytes(number(text)?).ok_or_else(|| "one of 256, 512, 1024, 2048, 4096".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_parses_c_notation() {
        assert_eq!(number("18515"), Ok(18515_u16));
        assert_eq!(number("0x4853"), Ok(0x4853_u16));
        assert_eq!(number("010"), Ok(8_u32));
        assert_eq!(number("0"), Ok(0_u8));
        for wrong in ["", "x", "0x", "-1", "+1", "0x+1", "08", "256", "1 "] {
            assert!(number::<u8>(wrong).is_err(), "{wrong}");
        }
        assert!(positive::<u8>("0").is_err());
        assert!(service_level("15").is_ok() && service_level("16").is_err());
        assert_eq!(mtu("2048"), Ok(Mtu::B2048));
        assert!(mtu("1500").is_err());
    }

    #[test]
    fn check_refuses_conflicting_options() {
        let extensions = |[odp, iodp, prefetch, dm]: [bool; 4]| Extensions {
            odp,
            iodp,
            prefetch,
            dm,
            ..Extensions::default()
        };
        let refused = |set| extensions(set).check().map_err(|err| err.to_string());
        assert_eq!(refused([true, false, true, false]), Ok(()));
        assert_eq!(refused([false, true, true, false]), Ok(()));
        assert_eq!(refused([false, false, false, true]), Ok(()));
        let prefetch = "prefetch is valid only with on-demand memory region";
        for set in [[false, false, true, false], [false, false, true, true]] {
            assert_eq!(refused(set), Err(prefetch.to_owned()));
        }
        let device = "DM memory region can't be on demand";
        for set in [[true, false, false, true], [false, true, true, true]] {
            assert_eq!(refused(set), Err(device.to_owned()));
        }
    }
}
