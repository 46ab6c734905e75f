/** Errors by the names that the test vectors use. */

class HushRecError extends Error {
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

export class BudgetError extends HushRecError {}
export class CertificateError extends HushRecError {}
export class CodecError extends HushRecError {}
export class ContributionError extends HushRecError {}
export class EnvelopeError extends HushRecError {}
export class KeyringError extends HushRecError {}
export class ParameterError extends HushRecError {}
export class RefusalError extends HushRecError {}
export class RoundKeyError extends HushRecError {}
export class SignatureError extends HushRecError {}
export class ThresholdError extends HushRecError {}
