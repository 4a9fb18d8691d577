//! Rates of paths, as codes, as multiples of 2.5 Gb/s, and in Mb/s.

use std::ffi::c_int;

/// A rate: the code (`ibv_rate`), the multiple of 2.5 Gb/s, if the specification has one, and Mb/s.
struct Rate {
    code: c_int,
    multiple: Option<c_int>,
    mbps: c_int,
}

const fn rate(code: c_int, multiple: c_int, mbps: c_int) -> Rate {
    Rate {
        code,
        multiple: Some(multiple),
        mbps,
    }
}

const fn without_multiple(code: c_int, mbps: c_int) -> Rate {
    Rate {
        code,
        multiple: None,
        mbps,
    }
}

const RATES: [Rate; 23] = [
    rate(2, 1, 2_500),
    rate(5, 2, 5_000),
    rate(3, 4, 10_000),
    rate(6, 8, 20_000),
    rate(4, 12, 30_000),
    rate(7, 16, 40_000),
    rate(8, 24, 60_000),
    rate(9, 32, 80_000),
    rate(10, 48, 120_000),
    without_multiple(11, 14_062),
    without_multiple(12, 56_250),
    without_multiple(13, 112_500),
    without_multiple(14, 168_750),
    without_multiple(15, 25_781),
    without_multiple(16, 103_125),
    without_multiple(17, 206_250),
    without_multiple(18, 309_375),
    rate(19, 11, 28_125),
    rate(20, 20, 53_125),
    rate(21, 160, 425_000),
    rate(22, 240, 637_500),
    rate(23, 320, 850_000),
    rate(24, 480, 1_275_000),
];

/// Code of the maximum rate of a port, returned for other rates.
const MAX: c_int = 0;

fn find(matches: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|rate| matches(rate))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(code: c_int) -> c_int {
    let multiple = find(|rate| rate.code == code).and_then(|rate| rate.multiple);
    multiple.unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    find(|rate| rate.multiple == Some(multiple)).map_or(MAX, |rate| rate.code)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(code: c_int) -> c_int {
    find(|rate| rate.code == code).map_or(-1, |rate| rate.mbps)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    find(|rate| rate.mbps == mbps).map_or(MAX, |rate| rate.code)
}
