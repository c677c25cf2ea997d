#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::rdma::HcaFilter;

fuzz_target!(|text: &str| {
    if let Ok(filter) = HcaFilter::parse(text) {
        for device in ["mlx5_0", "mlx5_10", "rxe0", ""] {
            for port in [0, 1, 2, u32::MAX] {
                filter.allows(device, port);
            }
        }
        // What is read can be written, and read again as the same.
        assert_eq!(HcaFilter::parse(&filter.to_string()).expect("our own text is read"), filter);
    }
});
