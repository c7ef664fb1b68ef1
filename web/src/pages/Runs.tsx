/** The runs of all DAGs. */
import { Head } from '../parts/Head'
import { t } from '../strings'
import { RunList } from './runList'

export default function Runs() {
  return (
    <>
      <Head title={t.runsList.title} />
      <RunList dagId={null} />
    </>
  )
}
