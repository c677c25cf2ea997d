#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_transport::tcp::address::{Filter, candidates};
use nd_transport::{Card, DerivedCard, Family};

// What a rank says of itself, and how others would then try to reach it.
fuzz_target!(|bytes: &[u8]| {
    if let Ok(card) = serde_json::from_slice::<Card>(bytes) {
        for same_host in [false, true] {
            let _ = candidates(&[], &Filter::parse(""), Family::Any, &card.tcp, same_host);
        }
        let written = serde_json::to_vec(&card).expect("plain data");
        assert!(serde_json::from_slice::<Card>(&written).is_ok());
    }
    if let Ok(card) = serde_json::from_slice::<DerivedCard>(bytes) {
        let written = serde_json::to_vec(&card).expect("plain data");
        assert!(serde_json::from_slice::<DerivedCard>(&written).is_ok());
    }
});
