/** The runs of a DAG. */
import { RunList } from '../runList'

export function RunsTab({ dagId }: { dagId: string }) {
  return <RunList dagId={dagId} />
}
