//! Filters for system calls that change files beyond Landlock's rights.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::ffi::{c_int, c_long};

use anyhow::{Context, Result};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// Calls with a mode, an owner or times for a path or descriptor. They return success without an effect, as on a file
/// system that stores none of these: User-Mode Linux and copying programs fail otherwise.
const IGNORED: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
];

/// Numbers of calls of Linux 6.6, 6.13 and 6.17, equal on all architectures.
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;

/// Calls that change other attributes of files, that take their arguments from memory, where a filter cannot check them, or
/// that reach other programs of the host.
const REFUSED: &[c_long] = &[
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_socket,
];

/// Calls that open files, with the index of the flags; the mode follows.
const OPENING: &[(c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
    (libc::SYS_openat, 2),
];

/// Calls that only create files, with the index of the mode.
const CREATING: &[(c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
];

/// Flags of an opening call with a mode for a new file.
const NEW_FILE: [c_int; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Bits of a mode that lend the owner's or the group's rights to users of a program.
const SET_ID: [u32; 2] = [libc::S_ISUID, libc::S_ISGID];

/// Requests of `ioctl` that change a file by a descriptor without write access, or that type into a terminal.
const REFUSED_REQUESTS: [u32; 6] = [
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4008_7602, // FS_IOC_SETVERSION
    0x401c_5820, // FS_IOC_FSSETXATTR
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x5412,      // TIOCSTI
    0x541c,      // TIOCLINUX
];

/// System calls, each with the conditions of the filter, one of which has to hold; none for all uses of the call.
type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// A comparison of one argument.
type Comparison = Result<SeccompCondition, BackendError>;

/// The filters. Without `truncation_denied`, calls that truncate a file without opening it for writing are refused too.
///
/// # Errors
///
/// The architecture has no filters.
pub(super) fn filters(truncation_denied: bool) -> Result<[BpfProgram; 2]> {
    Ok([
        compiled(ignored(), 0)?,
        compiled(refused(truncation_denied)?, libc::EPERM)?,
    ])
}

/// A program for the kernel by which calls of `rules` return `errno`.
pub(super) fn compiled(rules: Rules, errno: c_int) -> Result<BpfProgram> {
    let architecture = ARCH
        .try_into()
        .with_context(|| format!("guests cannot be confined on {ARCH}"))?;
    let action = SeccompAction::Errno(errno.cast_unsigned());
    let filter = SeccompFilter::new(with_x32(rules), SeccompAction::Allow, action, architecture)?;
    Ok(filter.try_into()?)
}

/// Adds the calls of x32, the second table of x86-64, which has the same numbers with another bit, except for `ioctl`.
fn with_x32(mut rules: Rules) -> Rules {
    const X32: c_long = 0x4000_0000;
    if cfg!(target_arch = "x86_64") {
        let number = |call| match call {
            libc::SYS_ioctl => X32 | 514,
            call => X32 | call,
        };
        let second: Vec<_> = rules
            .iter()
            .map(|(call, conditions)| (number(*call), conditions.clone()))
            .collect();
        rules.extend(second);
    }
    rules
}

fn ignored() -> Rules {
    IGNORED.iter().map(|call| (*call, Vec::new())).collect()
}

fn refused(truncation_denied: bool) -> Result<Rules> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    for &(call, flags) in OPENING {
        let mut conditions = Vec::new();
        for new in NEW_FILE {
            for bit in SET_ID {
                conditions.push(all_of([
                    has_bits(flags, new.cast_unsigned()),
                    has_bits(flags + 1, bit),
                ])?);
            }
        }
        if !truncation_denied {
            let access = (libc::O_ACCMODE | libc::O_TRUNC).cast_unsigned();
            let reading = (libc::O_RDONLY | libc::O_TRUNC).cast_unsigned();
            conditions.push(all_of([equals(flags, access, reading)])?);
        }
        rules.insert(call, conditions);
    }
    for &(call, mode) in CREATING {
        let conditions = SET_ID.map(|bit| all_of([has_bits(mode, bit)]));
        rules.insert(call, conditions.into_iter().collect::<Result<_>>()?);
    }
    let requests = REFUSED_REQUESTS.map(|request| all_of([equals(1, u32::MAX, request)]));
    rules.insert(
        libc::SYS_ioctl,
        requests.into_iter().collect::<Result<_>>()?,
    );
    if !truncation_denied {
        rules.insert(libc::SYS_truncate, Vec::new());
    }
    Ok(rules)
}

/// A condition of several comparisons, all of which have to hold.
fn all_of<const N: usize>(comparisons: [Comparison; N]) -> Result<SeccompRule> {
    let comparisons = comparisons.into_iter().collect::<Result<_, _>>()?;
    Ok(SeccompRule::new(comparisons)?)
}

fn has_bits(argument: u8, bits: u32) -> Comparison {
    equals(argument, bits, bits)
}

/// Compares the bits of `mask` of an argument. The kernel ignores the upper half of flags, modes and requests, and so does
/// the comparison.
fn equals(argument: u8, mask: u32, value: u32) -> Comparison {
    let operator = SeccompCmpOp::MaskedEq(mask.into());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())
}
