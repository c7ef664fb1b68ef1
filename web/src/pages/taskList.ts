/** The address of the list of task instances. */
import { href } from '../shell/router'

/** Those in these states, which commas separate, of a pool or queue. */
export const tasksHref = (of: { state?: string; pool?: string; queue?: string }) => href(`/tasks?${new URLSearchParams(of)}`)
