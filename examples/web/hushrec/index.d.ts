/** What a client agrees to; see `Policy` of the Python SDK for the meaning of the numbers. */
export interface Policy {
  /** Fewest clients in a sum. */
  readonly minCohort: number;
  /** Fewest bits of a ring element. */
  readonly minBits: number;
  /** Most values of a contribution. */
  readonly mostValues: number;
  readonly mostEpochs: number;
  /** Fewest members of a one-shot committee, and how many of them may collude. */
  readonly minCommittee: number;
  readonly minCorruptMembers: number;
  /** Smallest colluding share of a masked round that must be tolerated, and its error 2^-sigma. */
  readonly minCorrupt: number;
  readonly minSigma: number;
  /** Share of an update's values, 0 to 1, that may be clipped before training counts as failed. */
  readonly maxClipShare: number;
  /** Whether to accept tasks in which only trust in the server's models protects what the device has. */
  readonly trustModels: boolean;
  /** Whether `join` enrols in the task that follows a stored one that is over, if the rest allows its terms. */
  readonly follow: boolean;
}

export const POLICY: Policy;

/** Where a client keeps its keys, membership and model. A `put` must be durable when it resolves. */
export interface Store {
  get(name: string): Promise<any>;
  put(name: string, value: unknown): Promise<void>;
  clear(): Promise<void>;
}

export class MemoryStore implements Store {
  get(name: string): Promise<any>;
  put(name: string, value: unknown): Promise<void>;
  clear(): Promise<void>;
}

/** The store of a page: one IndexedDB database. */
export class IndexedStore implements Store {
  private constructor();
  static open(name: string): Promise<IndexedStore>;
  get(name: string): Promise<any>;
  put(name: string, value: unknown): Promise<void>;
  clear(): Promise<void>;
}

/** The organiser whose certificates count: base64url of its Ed25519 key, and the scope of the task. */
export interface Organiser {
  key: string;
  scope: string;
}

/** What a client asks its organiser to certify, and the document that the organiser's endpoint answers with. */
export type CertificateRequest = Record<string, unknown>;
export type CertificateDocument = Record<string, unknown>;

export type Event =
  | { kind: "round"; round: Record<string, unknown> }
  | { kind: "stage"; stage: string; round: number }
  | { kind: "contributed"; round: number; bytes: number; digest: string; [more: string]: unknown }
  | { kind: "abstained" | "missed" | "training-failed"; round: number; reason: string }
  | { kind: "model"; round: number }
  | { kind: "waiting" | "not-followed"; reason: string }
  | { kind: "unreachable"; reason: string; seconds: number }
  | { kind: "traffic"; [more: string]: unknown }
  | { kind: "ended"; state: string };

export interface JoinOptions {
  /** Address of the server: https, or http on this machine. */
  url: string;
  /** Needed the first time only. */
  invitation?: string;
  /** Id of the stored task, to join the last one that follows it in its place. */
  after?: string;
  /** What `following` or `preview` returned and the user agreed to. Another task, or other terms, are refused. */
  shown?: Record<string, unknown>;
  /** Comes with the app, not from the server. */
  organiser: Organiser;
  issue(request: CertificateRequest): Promise<CertificateDocument>;
  store: Store;
  policy?: Policy;
  on?(event: Event): void;
  signal?: AbortSignal;
}

export interface Scored {
  item: number;
  score: number;
}

/** One client of one task. */
export class Participant {
  private constructor();
  /** Joins with an invitation, or goes on with the stored membership. */
  static join(options: JoinOptions): Promise<Participant>;
  /** The JSON of the task that an invitation is for, checked against the policy, without using the invitation. */
  static preview(options: Omit<JoinOptions, "after" | "shown" | "issue" | "store"> & { invitation: string }): Promise<Record<string, unknown>>;
  /** The JSON of the task that follows the stored one, checked against the policy, without enrolling; null if none does. */
  static following(options: Omit<JoinOptions, "invitation" | "after" | "shown" | "issue">): Promise<Record<string, unknown> | null>;
  readonly task: Record<string, unknown>;
  readonly clientId: string;
  /** Takes part in every round that asks this client. liked(): the current item numbers. Resolves when the task ends. */
  takePart(liked: () => number[], signal?: AbortSignal): Promise<void>;
  /**
   * The best items that are not liked, without a request; [] before the first round. labels: of each item, from
   * `decodeCatalogue`, for the scores of items that fewer than five clients have.
   */
  recommend(count: number, liked: number[], labels?: string[][] | null): Promise<Scored[]>;
}

/** As `Participant.recommend`, from a store alone. */
export function recommend(
  store: Store,
  organiser: Organiser,
  count: number,
  liked: number[],
  policy?: Policy,
  labels?: string[][] | null,
): Promise<Scored[]>;

/** The JSON of a receipt, parsed (`hushrec receipt export`). */
export interface Receipt {
  readonly server_key: string;
  readonly identity_key: string;
  readonly organiser: { readonly key: string; readonly scope: string } | null;
  readonly acknowledged: { readonly task_id: string; readonly round: number; readonly digest: string; readonly bytes: number };
  readonly round: { readonly release: { readonly survivors: number; readonly aggregate_digest: string | null } } | null;
  readonly audience: string;
  readonly [more: string]: unknown;
}
export interface CheckedReceipt {
  /** failed: the round released no sum. acknowledged: the server has not said how the round ended. */
  verdict: "counted" | "omitted" | "failed" | "acknowledged";
  /** Whether the organiser that the receipt names certified the member. */
  certified: boolean;
}

/** What a receipt proves, without a server. Compare its keys with those that you know from elsewhere. */
export function checkReceipt(receipt: Receipt): Promise<CheckedReceipt>;

declare class HushRecError extends Error {}
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
export class AlreadySummedError extends RefusalError {}
export class NotAttestedError extends RefusalError {}
export class FalseModelError extends HushRecError {}
export class SignatureError extends HushRecError {}
export class ThresholdError extends HushRecError {}
/** This client does not agree to the task; the message says what to change. */
export class PolicyError extends HushRecError {}
export class UnreachableError extends HushRecError {}
export class AbstainedError extends HushRecError {}
export class RoundLostError extends HushRecError {}
/** The server answered with a problem document (RFC 9457). slug: the last part of its type. */
export class ApiError extends HushRecError {
  readonly status: number;
  readonly problem: Record<string, unknown>;
  readonly slug: string;
}
