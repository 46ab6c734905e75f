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
/** A receipt is malformed, altered, or proves nothing. */
export class ReceiptError extends HushRecError {}
export class RefusalError extends HushRecError {}
/** The server repeats a sum that this client took part in, after it has taken part in a later one. */
export class AlreadySummedError extends RefusalError {}
/** Too few members have stated the model that the server gave this client, or one has stated another. */
export class NotAttestedError extends RefusalError {}
/** The server's model does not follow from the sums that it released: it lies or is broken. */
export class FalseModelError extends HushRecError {}
export class SignatureError extends HushRecError {}
export class ThresholdError extends HushRecError {}
export class PolicyError extends HushRecError {}

/** The server answered with a problem document (RFC 9457). slug: the last part of its type. */
export class ApiError extends HushRecError {
  constructor(method, path, status, problem) {
    super(`${method} ${path}: ${problem.detail ?? problem.title ?? "no reason given"} (${status})`);
    this.status = status;
    this.problem = problem;
    this.slug = String(problem.type ?? "").split(":").at(-1);
  }
}

/** The server cannot be reached, or its answer broke off. */
export class UnreachableError extends HushRecError {}

/** This client has nothing to add to the round's sum, or another sum has its items: it sends nothing. */
export class AbstainedError extends HushRecError {}

/** The round ended, or went on, before this client had sent its message. */
export class RoundLostError extends HushRecError {}
