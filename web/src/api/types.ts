/** Short names for the shapes of the API. */
import type { components } from './schema'

type S = components['schemas']
export type Dag = S['Dag']
export type DagDetails = S['DagDetails']
export type DagRun = S['DagRun']
export type ListedRun = S['ListedRun']
export type RecentRun = S['RecentRun']
export type TaskInstance = S['TaskInstance']
export type TaskInstanceView = S['TaskInstanceView']
export type LogLines = S['LogLines']
export type TaskTry = S['TaskInstanceTry']
export type Task = S['Task']
export type Pool = S['Pool']
export type Variable = S['Variable']
export type Connection = S['Connection']
export type Backfill = S['Backfill']
export type Asset = S['Asset']
export type AssetEvent = S['AssetEvent']
export type EventLog = S['EventLog']
export type Job = S['Job']
export type Bundle = S['Bundle']
export type BundleVersion = S['BundleVersion']
export type DagVersion = S['Version']
export type ImportError_ = S['ImportError_']
export type XCom = S['XCom']
export type XComValue = S['XComValue']

export interface Account {
  username: string
  role: 'viewer' | 'operator' | 'admin' | null
  tags: Record<string, string>
  /** The DAGs that the account may change; null: all. */
  operates: string[] | null
  links: { flower: string | null }
}
export type TaskState =
  | 'success' | 'failed' | 'running' | 'queued' | 'scheduled' | 'up_for_retry' | 'up_for_reschedule' | 'deferred'
  | 'upstream_failed' | 'skipped' | 'removed' | 'restarting' | 'none'
