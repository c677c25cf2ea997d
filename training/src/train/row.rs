//! What is known of a step.

use serde::Serialize;

/// One row of the metrics file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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

    #[test]
    fn rows_are_plain_json() {
        let row = Row {
            step: 3,
            loss: 2.5,
            grad_norm: f64::NAN,
            lr: 1e-3,
            tokens_per_s: 10.0,
            eval_loss: None,
            loss_scale: None,
            skipped: false,
        };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(text, r#"{"step":3,"loss":2.5,"grad_norm":null,"lr":0.001,"tokens_per_s":10.0}"#);
        assert!(
            serde_json::to_string(&Row { eval_loss: Some(2.0), ..row })
                .unwrap()
                .ends_with(r#""eval_loss":2.0}"#)
        );
        let skipped = Row { loss_scale: Some(32768.0), skipped: true, ..row };
        let text = serde_json::to_string(&skipped).unwrap();
        assert!(text.ends_with(r#""loss_scale":32768.0,"skipped":true}"#), "{text}");
    }
}
