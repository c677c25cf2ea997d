//! The ports by which two ranks reach each other, and how people are told of them. Pure.

/// A port by which a rank reaches a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rail {
    /// The place of the device's adapter.
    pub adapter: usize,
    /// The port's number.
    pub port: u8,
    /// The index of its address.
    pub gid_index: u8,
    /// Mb/s in one direction, where known.
    pub rate_mbps: Option<u64>,
    /// Both ports, for people.
    pub name: String,
    /// This rank's port and the peer's, in short.
    pub ports: [String; 2],
}

/// What goes by several rails, for people: how many, and by which of this rank's ports to which of the peer's.
pub fn summary(rails: &[&Rail]) -> String {
    match rails {
        [rail] => rail.name.clone(),
        _ => {
            let [ours, theirs] = [0, 1].map(|side: usize| {
                let ports: Vec<&str> = rails.iter().map(|rail| rail.ports[side].as_str()).collect();
                ports.join(", ")
            });
            format!("{} rails: {ours} to {theirs}", rails.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_rails_are_told_by_number_and_ports() {
        let rail = |number: usize| Rail {
            adapter: number,
            port: 1,
            gid_index: 3,
            rate_mbps: None,
            name: format!("mlx5_{number}:1 (RoCE v2, IPv4, address 3) to mlx5_{}:1", number + 4),
            ports: [format!("mlx5_{number}:1"), format!("mlx5_{}:1", number + 4)],
        };
        assert_eq!(summary(&[&rail(0)]), "mlx5_0:1 (RoCE v2, IPv4, address 3) to mlx5_4:1");
        assert_eq!(summary(&[&rail(0), &rail(1)]), "2 rails: mlx5_0:1, mlx5_1:1 to mlx5_4:1, mlx5_5:1");
    }
}
