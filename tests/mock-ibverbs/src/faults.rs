//! Which call or packet meets what.
//!
//! A text of rules, separated by `;`, each `[DEVICE/]WHERE[#COUNT]=WHAT`:
//!
//! * **`WHERE`**: a call (`open_device query_device query_port query_gid alloc_pd reg_mr reg_dmabuf_mr create_comp_channel
//!   create_cq create_srq create_qp modify_qp_init modify_qp_rtr modify_qp_rts post_send post_srq_recv poll_cq
//!   req_notify_cq`), or a work request on its way to the peer (`write`, `send`).
//! * **`#COUNT`**: the how-manieth, from 1; `#N+`: that one and all after it; without: all. Rules of a device count what
//!   it does, others what all do.
//! * **`WHAT`**:
//!
//! | | |
//! |---|---|
//! | `ENOMEM`, `EINVAL`, …, or a number | the call fails with it |
//! | `status:N` | the work request fails with that status (`ibv_wc_status`), and its queue pair with it |
//! | `lost` | the packet is lost, however often it is sent |
//! | `late:N` | the work request, and all behind it on its queue pair, waits until devices were looked at N times, or N ms |
//! | `silence` | nothing is ever heard of the work request |
//! | `garble` | the first byte arrives with all bits turned round |
//! | `endless` | the message arrives, and again whenever the receiver looks |
//! | `port_down`, `port_up` | the state of the device's port 1 changes, which is told |
//! | `device_fatal`, `pair_fatal` | the device, or the queue pair, tells of its end |
//! | `down`, `mtu:BYTES`, `infiniband` | of `query_port`: what is answered |

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // see above
pub enum Action {
    Fail(i32),
    Status(u32),
    Lost,
    Late(u32),
    Silence,
    Garble,
    Endless,
    Port { up: bool },
    DeviceFatal,
    PairFatal,
    Down,
    Mtu(u32),
    InfiniBand,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    device: Option<String>,
    place: String,
    first: u64,
    last: u64,
    action: Action,
    seen: u64,
}

/// All rules, and what they have seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults(Vec<Rule>);

const PLACES: &[&str] = &[
    "open_device",
    "query_device",
    "query_port",
    "query_gid",
    "alloc_pd",
    "reg_mr",
    "reg_dmabuf_mr",
    "create_comp_channel",
    "create_cq",
    "create_srq",
    "create_qp",
    "modify_qp_init",
    "modify_qp_rtr",
    "modify_qp_rts",
    "post_send",
    "post_srq_recv",
    "poll_cq",
    "req_notify_cq",
    "write",
    "send",
];

impl Faults {
    /// Reads the rules.
    ///
    /// # Errors
    /// Which of them says nothing.
    pub fn parse(text: &str) -> Result<Faults, String> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        rules
            .map(|text| rule(text).ok_or_else(|| format!("no fault: `{text}`")))
            .collect::<Result<_, _>>()
            .map(Faults)
    }

    /// Something happens: what it meets.
    pub fn meet(&mut self, device: &str, place: &str) -> Vec<Action> {
        debug_assert!(PLACES.contains(&place), "{place}");
        let mut met = Vec::new();
        for rule in self.0.iter_mut().filter(|rule| rule.place == place) {
            if rule.device.as_deref().is_some_and(|name| name != device) {
                continue;
            }
            rule.seen += 1;
            if (rule.first..=rule.last).contains(&rule.seen) {
                met.push(rule.action);
            }
        }
        met
    }
}

fn rule(text: &str) -> Option<Rule> {
    let (head, action) = text.split_once('=')?;
    let (device, head) = match head.split_once('/') {
        Some((device, head)) => (Some(device.to_owned()), head),
        None => (None, head),
    };
    let (place, first, last) = match head.split_once('#') {
        None => (head, 1, u64::MAX),
        Some((place, count)) => match count.strip_suffix('+') {
            Some(first) => (place, first.parse().ok()?, u64::MAX),
            None => (place, count.parse().ok()?, count.parse().ok()?),
        },
    };
    let known = PLACES.contains(&place);
    known.then_some(Rule {
        device,
        place: place.to_owned(),
        first,
        last,
        action: action_of(action)?,
        seen: 0,
    })
}

fn action_of(text: &str) -> Option<Action> {
    let (word, number) = text.split_once(':').unwrap_or((text, ""));
    Some(match word {
        "status" => Action::Status(number.parse().ok()?),
        "late" => Action::Late(number.parse().ok()?),
        "mtu" => Action::Mtu((1..=5).find(|code| number == (128 << code).to_string())?),
        _ if !number.is_empty() => return None,
        "lost" => Action::Lost,
        "silence" => Action::Silence,
        "garble" => Action::Garble,
        "endless" => Action::Endless,
        "port_down" => Action::Port { up: false },
        "port_up" => Action::Port { up: true },
        "device_fatal" => Action::DeviceFatal,
        "pair_fatal" => Action::PairFatal,
        "down" => Action::Down,
        "infiniband" => Action::InfiniBand,
        "ENOMEM" => Action::Fail(libc::ENOMEM),
        "EINVAL" => Action::Fail(libc::EINVAL),
        "EIO" => Action::Fail(libc::EIO),
        "EPERM" => Action::Fail(libc::EPERM),
        "EACCES" => Action::Fail(libc::EACCES),
        "EOPNOTSUPP" => Action::Fail(libc::EOPNOTSUPP),
        "ENODEV" => Action::Fail(libc::ENODEV),
        "EMFILE" => Action::Fail(libc::EMFILE),
        "ENOSPC" => Action::Fail(libc::ENOSPC),
        "ETIMEDOUT" => Action::Fail(libc::ETIMEDOUT),
        "ENETUNREACH" => Action::Fail(libc::ENETUNREACH),
        errno => Action::Fail(errno.parse().ok().filter(|&n| n > 0)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_count_what_they_are_about() {
        let mut faults = Faults::parse("a/create_qp#2=ENOMEM; create_qp#3+=22 ;write=mtu:1024;").unwrap();
        let met: Vec<_> =
            ["a", "b", "a", "a", "b"].iter().map(|device| faults.meet(device, "create_qp")).collect();
        assert_eq!(Faults::parse("send=late:7").unwrap().meet("c", "send"), [Action::Late(7)]);
        let (enomem, einval) = (Action::Fail(libc::ENOMEM), Action::Fail(22));
        assert_eq!(met, [vec![], vec![], vec![enomem, einval], vec![einval], vec![einval]]);
        assert_eq!(faults.meet("c", "write"), [Action::Mtu(3)]);
        assert!(faults.meet("c", "send").is_empty());
    }

    #[test]
    fn what_is_no_rule_is_told() {
        for text in
            ["create_qp", "creat_qp=1", "send=", "send=lost:1", "send#x=lost", "send=0", "write=mtu:7"]
        {
            assert_eq!(Faults::parse(text), Err(format!("no fault: `{text}`")));
        }
    }
}
