//! What is known of a step.

use serde::Serialize;

use super::{Predicted, Sent};

/// One row of the metrics file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// From 1.
    pub step: u64,
    /// Mean loss over the step's tokens, in nats.
    pub loss: f64,
    /// Global L2 norm of the gradients before clipping; null in a step that was skipped for the loss scale's sake.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Labels that count, of all ranks, over the time of the step.
    pub tokens_per_s: f64,
    /// Mean loss on the other text, where it was measured after this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f64>,
    /// What this rank sent in this step, and how long that took.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<Sent>,
    /// What was predicted for each step, by group: in the first row alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predicted: Vec<Predicted>,
    /// With f16, what losses will be multiplied by in the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether nothing was learnt in this step, as gradients overflowed at the loss scale; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Kind;

    #[test]
    fn rows_are_plain_json() {
        let row = Row {
            step: 3,
            loss: 2.5,
            grad_norm: f64::NAN,
            lr: 1e-3,
            tokens_per_s: 10.0,
            eval_loss: None,
            sent: Vec::new(),
            predicted: Vec::new(),
            loss_scale: None,
            skipped: false,
        };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(text, r#"{"step":3,"loss":2.5,"grad_norm":null,"lr":0.001,"tokens_per_s":10.0}"#);
        let ns = std::time::Duration::from_nanos;
        let sent =
            Sent { group: "tp", kind: Kind::AllReduce, calls: 2, bytes: 8, took: ns(1500), exposed: ns(500) };
        let more = Row { eval_loss: Some(2.0), sent: vec![sent], ..row.clone() };
        let end = r#""eval_loss":2.0,"sent":[{"group":"tp","kind":"all_reduce","calls":2,"bytes":8,"us":1.5,"exposed_us":0.5}]}"#;
        assert!(serde_json::to_string(&more).unwrap().ends_with(end));
        let skipped = Row { loss_scale: Some(32768.0), skipped: true, ..row };
        let text = serde_json::to_string(&skipped).unwrap();
        assert!(text.ends_with(r#""loss_scale":32768.0,"skipped":true}"#), "{text}");
    }
}
